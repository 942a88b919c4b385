"""Packed JSON: long, repetitive JSON values as compressed bytes.

A trial's schedule and conditions are a kilobyte of the same few words again and again; packed they
take a seventh of it. The first byte says which dictionary was used; what it stands for never
changes, because the bytes are in databases.
"""

from __future__ import annotations

import zlib

from tunefarm.configs.errors import DatabaseError

_FORMAT = b"\x01"
_MOST_BYTES = 64 << 20  # of a value that is unpacked; a damaged one could become endless
_RAW = -15  # no header, no trailing sum: every row has a checksum of its own

# Frequent strings, the most frequent last, where deflate refers to them with the fewest bits.
_DICTIONARY = (
    b'["Pad","Flatten","Split","Fuse","Parallel","grain","Prefetch","CacheWrite","workspace",'
    b'"stack","Winograd","Turn","Window","transform","inverse","scale","shift","max","sum","exp",'
    b'"softmax","matmul","gelu","add","out","residual","block","row","column","in0","in2","in3",'
    b'"involuntary_switches":0,"queued_seconds":0.0,"load":1.0,"calls":12,"retaken":0,"tainted":0,'
    b'"constant_copies":16,"anchor_seconds":1.9,"anchor_drift":-0.0,"relative_mad":0.00,'
    b'"censored":true,"confirmed":"],'
    b'{"threads":1,"threading":"","nice":0,"steal_seconds":0.0,"involuntary_switches":'
    b',"queued_seconds":0.0001,"load":2.0,"calls":3,"retaken":0,"tainted":0,"constant_copies":'
    b'16,"anchor_seconds":1.92,"anchor_drift":0.0,"relative_mad":0.0'
    b'[["Inline","pad"],["PackLayout","in1",[[0,8]],[0,3,4,2,1]],["PackLayout","in1",[[1,8]],'
    b'["Tile","bias","ocb",2,"shift"],["Tile","relu","ow",4,"shift"],["Reorder","bias",["n","oh",'
    b'"ocb.o","ow.o","ow.i","ocb.i","oci"]],["Unroll","relu","ow.i"],["Unroll","relu","ocb.i"],'
    b'["Vectorize","relu","oci"],["Partition","relu","ow.o"],["Fuse","relu","n","oh"],'
    b'["Parallel","relu","oh"],["ComputeAt","conv","relu","ow.o","register"],'
    b'["Tile","conv","ici",8],["Reorder","conv",["n","oh","icb","kh","kw","ici.o","ici.i","ow",'
    b'"ocb","oci"]],["Unroll","conv","ici.i",false],["Unroll","conv","ow"],'
    b'["Unroll","conv","ocb"],["Vectorize","conv","oci"]]'
)


def pack(text: str) -> bytes:
    """The text as compressed bytes; any Unicode text without lone surrogates."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _RAW, zdict=_DICTIONARY)
    return _FORMAT + packer.compress(text.encode()) + packer.flush()


def unpack(packed: bytes) -> str:
    """The inverse of `pack`. Raises DatabaseError for bytes that it did not make."""
    if not isinstance(packed, bytes) or packed[:1] != _FORMAT:
        raise DatabaseError("a packed value has an unknown format")
    unpacker = zlib.decompressobj(_RAW, zdict=_DICTIONARY)
    try:
        text = unpacker.decompress(packed[1:], _MOST_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            raise DatabaseError("a packed value is cut off or too long")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise DatabaseError(f"a packed value is damaged: {error}") from error
