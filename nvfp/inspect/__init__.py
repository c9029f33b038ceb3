"""Looking into a run and into numbers: what it costs, what a format does to a tensor."""

from __future__ import annotations

from nvfp.inspect.comparison import FormatComparison as FormatComparison, compare_formats as compare_formats
from nvfp.inspect.error_report import ErrorReport as ErrorReport, quant_error as quant_error
from nvfp.inspect.memory import peak_memory as peak_memory
