"""The report as one self-contained page."""

from sentinel.reports.html.page import page

__all__ = ["page"]
