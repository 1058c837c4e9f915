"""Pages of the dashboard: scripts that Streamlit runs, one a page."""
