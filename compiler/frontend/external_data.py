"""External data: the files in which a model keeps tensors, next to it or below.

A model names them, and anybody may have written the model. So a name leads to a file whose
directory is the model's folder, or in it once all links are followed: not "../x", not "/x", and
not "sub/x" where sub is a link out of the folder. The file itself may be a link to anywhere, as
model hubs' caches, DVC and Bazel lay models out: whoever put a link next to a model chose what it
leads to, and the user must be able to read that.

    snapshots/4f2a/model.onnx      -> ../../blobs/9c1b…     the model; its own folder is looked in
    snapshots/4f2a/model.onnx_data -> ../../blobs/77d0…     first, then the one of its target
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.large_arrays import LEAST_BYTES, mapped
from tunefarm.configs.file_kinds import kind_of, stand_in
from tunefarm.configs.files import open_regular

_HEAD_BYTES = 256  # enough for a stand-in, which is a text


@frozen
class ExternalData:
    """The folders of a model, in the order in which its external data is looked for."""

    folders: tuple[Path, ...]

    @staticmethod
    def of(model: str | os.PathLike[str]) -> ExternalData:
        """That of a model's file: its folder, and where it is a link that of its target."""
        folders = [Path(model).parent]
        if os.path.islink(model):
            folders.append(Path(os.path.realpath(model)).parent)
        return ExternalData(tuple(folders))

    def locate(self, location: str, what: str) -> Path:
        """The file of this name, which may be a link; `what` has the data, for errors.

        Raises ImportModelError for a name that leads out of the folders, and for no file.
        """
        if not location or "\0" in location:
            raise ImportModelError(f"{what} names no file for its external data")
        is_absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
        if is_absolute or ".." in PurePosixPath(location.replace("\\", "/")).parts:
            raise _outside(location, what)
        named = f"external data {location!r} of {what}"
        for folder in self.folders:
            path = folder / location
            if not os.path.lexists(path):
                continue
            if path.is_dir():
                raise ImportModelError(f"{named} is not a file")
            if not path.parent.resolve().is_relative_to(folder.resolve()):
                raise _outside(location, what)
            if not path.exists() and (kind := kind_of(path)) is not None:
                raise ImportModelError(f"{named} is {kind.what}", hint=kind.advice)
            return path
        places = " and ".join(map(str, self.folders))
        advice = f"it was looked for in {places}: copy it there, or save the model again"
        raise ImportModelError(f"{named} is missing", hint=advice)

    def read(self, location: str, offset: int, length: int, what: str) -> bytes | memoryview:
        """Bytes of a file, which is mapped where they are many.

        Raises ImportModelError as `locate`, and for a file that has them not, or is something else
        that stands in its place.
        """
        path = self.locate(location, what)
        named = f"external data {location!r} of {what}"
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if (kind := stand_in(file.read(_HEAD_BYTES))) is not None:
                    description = f"{named} is {kind.instead_of('the data')}"
                    raise ImportModelError(description, hint=kind.advice)
                if offset + length > size:
                    raise _too_short(path, f"{named} has {size} bytes", offset + length)
                if length >= LEAST_BYTES:
                    return memoryview(mapped(file))[offset : offset + length]
                file.seek(offset)
                data = file.read(length)
        except OSError as error:
            reason = error.strerror or error
            raise ImportModelError(f"{named} cannot be read: {reason}") from error
        if len(data) != length:
            raise ImportModelError(f"{named} became shorter while it was read")
        return data


def _too_short(path: Path, has: str, needed: int) -> ImportModelError:
    """Of a file with too few bytes, which may be something else."""
    kind = kind_of(path)
    text = f"{has}, and {needed} are needed"
    if kind is None:
        return ImportModelError(text, hint="it may be cut off")
    return ImportModelError(f"{text}: it is {kind.instead_of('the data')}", hint=kind.advice)


def _outside(location: str, what: str) -> ImportModelError:
    return ImportModelError(
        f"{what} names external data {location!r} outside the model's folder",
        hint="external data must lie next to the model or below",
    )
