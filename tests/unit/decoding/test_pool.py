"""Decoders in real processes: what they answer, and what happens when one dies."""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PIL import Image

from pipelines.protocol.images import RawImage
from server.backends.decoding import process
from server.backends.decoding.messages import ImageError
from server.backends.decoding.pool import DecoderFailed, DecoderPool
from server.errors import StorageFailed
from tests.support.bombs import encode, jpeg_of_scans, rgba_of_64_megapixels
from tests.support.polling import eventually

pytestmark = pytest.mark.slow

RED = encode(Image.new("RGB", (40, 30), "red"))


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[DecoderPool]:
    made = DecoderPool(tmp_path / "pixels")
    await made.start()
    yield made
    await made.stop()
    assert not made.pids


async def decode(pool: DecoderPool, data: bytes = RED, key: str = "key_1") -> RawImage:
    return (await pool.decode_image(key, data, 100_000))[0]


async def test_pixels_come_in_a_file_that_lives_as_long_as_the_image(pool: DecoderPool, tmp_path: Path) -> None:
    image, original = await pool.decode_image("key_1", RED, 300)
    assert original == (40, 30)
    message = pickle.dumps(image)
    assert len(message) < 500
    received = pickle.loads(message)
    assert (received.width_px, received.height_px, received.mode) == (20, 15, "RGB")
    assert received.data == image.data == bytes([255, 0, 0]) * 300
    del received
    assert len(os.listdir(tmp_path / "pixels")) == 1
    del image
    assert os.listdir(tmp_path / "pixels") == []
    assert pickle.loads(message).data == bytes(900)  # of a call that has ended


async def test_masks_are_decoded(pool: DecoderPool) -> None:
    mask = await pool.decode_mask("key_1", encode(Image.new("L", (8, 4), 255)), (8, 4), (4, 2))
    assert (mask.width_px, mask.height_px, mask.mode, mask.data) == (4, 2, "L", b"\xff" * 8)


async def test_a_bad_image_does_not_end_its_decoder(pool: DecoderPool, tmp_path: Path) -> None:
    await decode(pool)
    before = pool.pids
    for bad in (b"", b"hello", RED[:60], jpeg_of_scans(200, 64)):
        with pytest.raises(ImageError):
            await decode(pool, bad)
    await decode(pool)
    assert pool.pids == before
    assert os.listdir(tmp_path / "pixels") == []


async def test_a_decoder_that_is_killed_fails_its_image_alone(pool: DecoderPool) -> None:
    large = asyncio.create_task(decode(pool, rgba_of_64_megapixels()))
    await eventually(lambda: pool.pids)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)  # it does not end before the other image has been decoded
    other = await decode(pool, key="key_2")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DecoderFailed):
        await large
    assert other.width_px == 40
    assert pool.ended("died") == 1
    assert (await decode(pool)).width_px == 40


async def test_an_image_that_crashes_its_decoder_is_refused(pool: DecoderPool) -> None:
    large = asyncio.create_task(decode(pool, rgba_of_64_megapixels()))
    await eventually(lambda: pool.pids)
    os.kill(pool.pids[0], signal.SIGSEGV)
    with pytest.raises(ImageError, match="crashed"):
        await large
    assert pool.ended("crashed") == 1


async def test_an_image_that_takes_too_much_of_the_processor_is_refused(
    pool: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jpeg = encode(Image.new("L", (8, 8)), "JPEG")
    monkeypatch.setattr(process, "MODULE", "tests.support.impatient_decoder")
    with pytest.raises(ImageError, match="baseline JPEG"):
        await decode(pool, jpeg[:2] + b"\xff" * 40_000_000 + jpeg[2:])  # which Pillow reads byte by byte
    assert pool.ended("too_slow") == 1


async def test_an_image_that_takes_more_memory_than_its_header_says_is_refused(
    pool: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MODULE", "tests.support.careless_decoder")
    await decode(pool)
    before = pool.pids
    with pytest.raises(ImageError, match="takes more memory") as refused:
        await decode(pool, encode(Image.new("RGBA", (64_000_000, 1))))  # one row, so that a strip of it is all of it
    assert refused.value.code == "image_too_large"
    assert (await decode(pool)).width_px == 40
    assert pool.pids == before


async def test_a_decoder_that_says_nothing_is_killed(pool: DecoderPool) -> None:
    await decode(pool)
    pool._silence_s = 0.5
    os.kill(pool.pids[0], signal.SIGSTOP)
    with pytest.raises(DecoderFailed):
        await decode(pool)
    assert pool.ended("silent") == 1
    assert not pool.pids


async def test_a_decoder_that_cannot_be_started_fails_its_image(
    pool: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/none/python")
        with pytest.raises(DecoderFailed):
            await decode(pool)
    with monkeypatch.context() as patched:
        patched.setattr(process, "MODULE", "server.none")
        with pytest.raises(DecoderFailed):
            await decode(pool)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert (await decode(pool)).width_px == 40


async def test_pixels_that_cannot_be_written_are_the_servers_fault(pool: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "pixels").rmdir()
    with pytest.raises(StorageFailed, match="storage is full"):
        await decode(pool)


async def test_an_unused_decoder_is_ended(pool: DecoderPool) -> None:
    pool._idle_s = 0.0
    await decode(pool)
    await eventually(lambda: not pool.pids)
    assert pool.ended("died") == 0


async def test_what_a_killed_server_left_is_deleted_but_not_the_folder(tmp_path: Path) -> None:
    """It may be where a folder in memory is mounted."""
    folder = tmp_path / "pixels"
    (folder / "lost+found").mkdir(parents=True)
    (folder / "cat.png").touch()  # of a person who has named a folder of their own as the home
    left = folder / ("0" * 32)
    left.touch()
    mounted = folder.stat().st_ino
    pool = DecoderPool(folder)
    await pool.start()
    assert sorted(os.listdir(folder)) == ["cat.png", "lost+found"]
    left.touch()
    await pool.stop()
    assert sorted(os.listdir(folder)) == ["cat.png", "lost+found"]
    assert folder.stat().st_ino == mounted


async def test_many_images_share_two_decoders(pool: DecoderPool) -> None:
    most: set[int] = set()
    calls = [decode(pool, key=f"key_{index % 3}") for index in range(12)]
    calls += [decode(pool, rgba_of_64_megapixels(), key=f"key_{index}") for index in range(2)]

    async def watch() -> None:
        while True:
            most.add(len(pool.pids))
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    answers = await asyncio.gather(*calls)
    watching.cancel()
    assert [answer.width_px for answer in answers] == [40] * 12 + [316] * 2
    assert max(most) == 2


async def test_a_caller_that_leaves_takes_the_decoder_with_it(pool: DecoderPool, tmp_path: Path) -> None:
    large = asyncio.create_task(decode(pool, rgba_of_64_megapixels()))
    await eventually(lambda: pool.pids)
    (pid,) = pool.pids
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.ended("abandoned") == 1
    assert os.listdir(tmp_path / "pixels") == []
