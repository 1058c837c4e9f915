"""The dashboard: run by Streamlit. Reads the run store and starts nothing; it can delete runs."""

from __future__ import annotations

import streamlit as st
from PIL import Image, ImageDraw

from reports.dashboard import store
from reports.figures import style
from reports.markdown import escape


def _icon() -> Image.Image:
    """Drawn here: an icon named by a symbol would be fetched from the network."""
    icon = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    pen = ImageDraw.Draw(icon)
    for row, (start, end, colour) in enumerate(
        ((4, 40, style.ORANGE), (16, 60, style.BLUE), (28, 60, style.GREEN))
    ):
        pen.rounded_rectangle((start, 8 + 18 * row, end, 20 + 18 * row), radius=5, fill=colour)
    return icon


st.set_page_config(page_title="LLM serving workbench", page_icon=_icon(), layout="wide")

page = st.navigation(
    {
        "Store": [
            st.Page("views/runs.py", title="Runs", icon=":material/list:", default=True),
            st.Page("views/live.py", title="Live", icon=":material/sensors:", url_path="live"),
        ],
        "One run": [
            st.Page("views/run.py", title="Run", icon=":material/monitoring:", url_path="run"),
            st.Page("views/xray.py", title="Engine X-ray", icon=":material/view_timeline:", url_path="xray"),
        ],
        "Several runs": [
            st.Page(
                "views/compare.py", title="Compare", icon=":material/compare_arrows:", url_path="compare"
            ),
            st.Page("views/sweep.py", title="Sweep", icon=":material/tune:", url_path="sweep"),
            st.Page("views/capacity.py", title="Capacity", icon=":material/speed:", url_path="capacity"),
            st.Page("views/gate.py", title="Gate", icon=":material/rule:", url_path="gate"),
        ],
        "Tools": [
            st.Page(
                "views/calculator.py", title="Calculator", icon=":material/calculate:", url_path="calculator"
            ),
        ],
    }
)
with st.sidebar:
    st.caption(f"Run store: {escape(store.root())}")
    st.caption("Nothing here starts or changes a run. Deleting one asks first.")
page.run()
