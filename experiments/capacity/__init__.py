"""The highest rate at which a target still meets its objectives."""
