"""The same model in another of llama.cpp's formats, so that it can run in the one it is fast in.

    python -m benchmarks.requantize MODEL.Q4_1.gguf MODEL.Q8_0.gguf Q8_0

llama.cpp's fast CPU kernels know Q4_0 and Q8_0, not Q4_1, which the default model comes in. Tensors
in the source's most common format are unpacked and rounded anew; all others stay as they are. From
4 bits to Q8_0 next to nothing is lost, to Q4_0 a little.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

_FORMATS = ("Q8_0", "Q4_0")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.requantize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("result", type=Path, metavar="OUT.gguf")
    parser.add_argument("format", choices=_FORMATS)
    given = parser.parse_args(argv)
    requantize(given.source, given.result, given.format)
    return 0


def requantize(source: Path, result: Path, name: str) -> None:
    """Write `result` with what was in the source's most common format as `name`."""
    reader = gguf.GGUFReader(source)
    wanted = gguf.GGMLQuantizationType[name]
    common, _ = Counter(tensor.tensor_type for tensor in reader.tensors).most_common(1)[0]
    writer = gguf.GGUFWriter(result, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        # The first are the file's own head, the second is written already.
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = field.contents()
        if key == "general.file_type":
            value = int(gguf.LlamaFileType[f"MOSTLY_{name}"])
        is_list = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, value, field.types[0], field.types[-1] if is_list else None)
    for tensor in reader.tensors:
        if tensor.tensor_type == common:
            exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            packed = gguf.quants.quantize(exact.astype(np.float32), wanted)
            writer.add_tensor(tensor.name, packed, raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
