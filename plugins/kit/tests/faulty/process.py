"""Faults of what belongs to the process or its user: settings, secrets, threads."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import threading
from pathlib import Path

from faulty import Faulty, caught_by


@caught_by("test_process_wide_settings_stay_as_they_are", says="changed the process's environment")
class ConfiguresItselfByTheEnvironment(Faulty):
    """At its first load: whoever asks later finds it set already."""

    def load(self, source, options):
        os.environ["OMP_NUM_THREADS"] = "7"
        return super().load(source, options)


@caught_by("test_process_wide_settings_stay_as_they_are", says="changed the process's environment")
class ConfiguresItselfByTheLibrarysEnvironment(Faulty):
    """As a C library does: os.environ does not show it."""

    def load(self, source, options):
        ctypes.CDLL(None).setenv(b"VENDOR_HOME", b"/opt/vendor", 1)
        return super().load(source, options)


@caught_by("test_process_wide_settings_stay_as_they_are", says="the process's signal handlers")
class CatchesSignals(Faulty):
    def compile(self, loaded, options):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: None)
        return super().compile(loaded, options)


@caught_by("test_process_wide_settings_stay_as_they_are", says="the process's signal handlers")
class CatchesSignalsAsALibrary(Faulty):
    """With sigaction, which Python does not notice."""

    def compile(self, loaded, options):
        libc = ctypes.CDLL(None)
        libc.signal(int(signal.SIGSEGV), ctypes.cast(libc.abort, ctypes.c_void_p))
        return super().compile(loaded, options)


@caught_by("test_process_wide_settings_stay_as_they_are", says="the process's working folder")
class ChangesTheFolder(Faulty):
    def load(self, source, options):
        os.chdir("/")
        return super().load(source, options)


@caught_by("test_a_secret_model_leaves_no_file", says="files were written while a secret model")
class WritesModelsToATemporaryFile(Faulty):
    """For a runtime that reads files only; it is gone again at once."""

    def load(self, source, options):
        if source.data is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(source.data)
        return super().load(source, options)


@caught_by("test_a_secret_model_leaves_no_file", says="files were written while a secret model")
class CachesModelsAsALibrary(Faulty):
    """Writes with the C library, past all of Python, into the user's home."""

    def compile(self, loaded, options):
        libc = ctypes.CDLL(None)
        path = os.path.join(os.environ["HOME"], "kernels.bin").encode()
        file = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        libc.write(file, b"secret", 6)
        libc.close(file)
        os.unlink(path)
        return super().compile(loaded, options)


@caught_by("test_a_secret_model_leaves_no_file", says="bytes went to disk while a secret model")
class WritesModelsIntoAFolderOfItsOwn(Faulty):
    """With the C library too, and not in a folder that anybody looks at."""

    def load(self, source, options):
        if source.is_secret and source.data is not None and len(source.data) > 2**20:
            libc = ctypes.CDLL(None)
            path = (Path(os.environ["FAULTY_FOLDER"]) / "spill").as_posix().encode()
            file = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            libc.write(file, source.data, ctypes.c_size_t(len(source.data)))
            libc.close(file)
            os.unlink(path)
        return super().load(source, options)


@caught_by("test_a_secret_model_leaves_no_file", says="files were written while a secret model")
class WritesWeightsOutOfMemory(Faulty):
    def load(self, source, options):
        for location, data in source.files.items():
            Path(os.environ["TMPDIR"], location).write_bytes(data)
        return super().load(source, options)


@caught_by("test_a_model_uses_the_threads_it_is_given", says="one thread is allowed")
class IgnoresTheThreadCount(Faulty):
    """Runs in two threads, whatever it was told."""

    def predict(self, context, inputs, outputs, deadline_s):
        results = []

        def work() -> None:
            other = context.executable.inner.open_context()
            results.append(other.run(inputs, None, None))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return super().predict(context, inputs, outputs, deadline_s)
