"""The table of specializations: its rows, the rules it obeys and the choice of a row at run time.

Pure code over plain values: imports neither torch nor a target.
"""

from polybatch.specialization.config import BatchingConfig
from polybatch.specialization.identify import identifying_inputs, propose_prefill_lengths
from polybatch.specialization.qaic import specializations_text, to_qaic_specializations
from polybatch.specialization.row import Phase, Specialization
from polybatch.specialization.table import SpecializationTable, build_table

__all__ = [
    "BatchingConfig",
    "Phase",
    "Specialization",
    "SpecializationTable",
    "build_table",
    "identifying_inputs",
    "propose_prefill_lengths",
    "specializations_text",
    "to_qaic_specializations",
]
