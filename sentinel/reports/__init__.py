"""Reports: tables, pictures and caveats drawn from the other nouns. Shows what they say and computes no physics.

Sums reconcile, or the report refuses with a ReportError that names both. Needs pandas, and no torch.
"""

from sentinel.reports.reconcile import ReportError
from sentinel.reports.session_report import Report, build_report
from sentinel.reports.setup import Done, InPlace, Setup, StorageFigures

__all__ = ["Done", "InPlace", "Report", "ReportError", "Setup", "StorageFigures", "build_report"]
