"""Looking into a run and into numbers: what it costs, what a format does to a tensor."""

from __future__ import annotations

from nvfp.inspect import profiling as _profiling
from nvfp.inspect.availability import (
    alignment as alignment,
    is_fp8_available as is_fp8_available,
    is_fp8_block_scaling_available as is_fp8_block_scaling_available,
    is_mxfp8_available as is_mxfp8_available,
    is_nvfp4_available as is_nvfp4_available,
)
from nvfp.inspect.bisection import bisect as bisect
from nvfp.inspect.comparison import FormatComparison as FormatComparison, compare_formats as compare_formats
from nvfp.inspect.error_report import ErrorReport as ErrorReport, quant_error as quant_error
from nvfp.inspect.explanation import RecipeExplanation as RecipeExplanation, explain_recipe as explain_recipe
from nvfp.inspect.figures_table import Recording as Recording, TensorFigures as TensorFigures
from nvfp.inspect.findings import Bisection as Bisection, Finding as Finding
from nvfp.inspect.memory_table import MemoryTable as MemoryTable, ParameterMemory as ParameterMemory, memory as memory
from nvfp.inspect.peak import peak_memory as peak_memory
from nvfp.inspect.profiling import nvtx as nvtx
from nvfp.inspect.recording import record as record

_profiling.from_switch()
