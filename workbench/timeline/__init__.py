"""A run's requests and steps on one time axis: the exact split of each request's time, and its export."""
