"""From one recorded run to named bottlenecks: five families, evidence, rivals, and the experiment that would
confirm them."""
