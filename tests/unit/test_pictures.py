"""Pictures that are turned onto each other, stored in a few bytes, with clusters that keep their numbers."""

import base64

import numpy as np
import pytest

from collapse.pictures import STEPS, encoded, followed, packed, turned


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def cloud(seed, n=20):
    points = np.random.default_rng(seed).normal(size=(n, 2)) * [3, 1]
    return points - points.mean(axis=0)


@pytest.mark.parametrize("angle", [0.0, 0.4, np.pi / 2, 2.5, np.pi])
@pytest.mark.parametrize("mirror", [1, -1])
def test_the_same_cloud_turned_mirrored_and_moved_lies_where_it_lay(angle, mirror):
    A = cloud(0)
    B = (A * [1, mirror]) @ rotation(angle) + [5, -2]
    first, second = turned([A, B])
    np.testing.assert_allclose(first, A, atol=1e-12)
    np.testing.assert_allclose(second, A, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_turn_or_mirror_image_is_nearer_to_the_layer_before(seed):
    A, B = cloud(seed), cloud(seed + 10) + 0.5 * cloud(seed)
    _, found = turned([A, B])
    least = ((found - A) ** 2).sum()
    for angle in np.linspace(0, 2 * np.pi, 200):
        for mirror in (1, -1):
            assert ((((B * [1, mirror]) @ rotation(angle)) - A) ** 2).sum() >= least - 1e-9


def test_distances_within_a_picture_stay_and_nothing_is_scaled():
    A, B = cloud(1), 7 * cloud(2)
    _, found = turned([A, B])
    between = np.linalg.norm(B[:, None] - B[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=-1), between, atol=1e-12)


def test_a_layer_without_a_picture_is_passed_over():
    A = cloud(3)
    first, gap, last = turned([A, None, A @ rotation(1.0)])
    assert gap is None
    np.testing.assert_allclose(last, first, atol=1e-12)


def test_a_picture_on_a_line_and_one_without_extent_are_turned_too():
    line = cloud(4) * [1, 0]
    first, second, third = turned([line, np.zeros_like(line), line])
    assert np.isfinite(second).all()
    np.testing.assert_allclose(np.abs(third), np.abs(first), atol=1e-12)


def test_coordinates_come_back_within_half_a_step():
    pictures = [cloud(seed) * 10.0**seed for seed in range(4)]
    text, unit = packed(pictures)
    back = np.frombuffer(base64.b64decode(text), dtype="<i2").reshape(4, 20, 2) * unit
    largest = max(np.abs(picture).max() for picture in pictures)
    assert unit == pytest.approx(largest / STEPS)
    assert np.abs(back - np.array(pictures)).max() <= unit / 2 * (1 + 1e-9)


def test_pictures_of_one_point_and_none_at_all():
    assert packed([np.zeros((3, 2))])[1] == 1.0
    assert packed([]) == ("", 1.0)


def test_integers_come_back_as_they_are():
    values = np.array([[-2, -1, 0], [1, 300, 32767]])
    assert np.frombuffer(base64.b64decode(encoded(values)), dtype="<i2").tolist() == values.ravel().tolist()


def same_clusters(a, b):
    return len(set(zip(a, b))) == len(set(a)) == len(set(b)) and all((x == -1) == (y == -1) for x, y in zip(a, b))


def test_numbers_that_change_places_are_changed_back():
    first = np.array([0, 0, 0, 1, 1, 1, -1])
    second = np.array([1, 1, 1, 0, 0, 0, -1])
    found = followed([first, second])
    assert found[0].tolist() == found[1].tolist() == first.tolist()


def test_a_new_cluster_gets_no_number_that_stands_before_it():
    found = followed([np.array([0, 0, 1, 1, -1, -1]), np.array([-1, -1, -1, -1, 0, 0])])
    assert found[1].tolist() == [-1, -1, -1, -1, 2, 2]


def test_the_larger_part_of_a_split_keeps_the_number():
    found = followed([np.array([0, 0, 0, 0, 0, 1, 1]), np.array([1, 1, 0, 0, 0, 2, 2])])
    assert found[1].tolist() == [2, 2, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_numbers_clusters_are_the_same(seed):
    rng = np.random.default_rng(seed)
    labels = [rng.integers(-1, 6, 40) for _ in range(6)]
    labels[2] = None
    for before, after in zip(labels, followed(labels)):
        assert (before is None) == (after is None)
        assert before is None or same_clusters(before.tolist(), after.tolist())
