"""Numbers as people read them: nothing that matters is rounded away."""

from __future__ import annotations

import pytest

from staticjob.units import count, money

# What the run page spells in the same way.
COUNTS = {
    0: "0",
    3.14159: "3.14",
    45: "45",
    999.4: "999",
    999.7: "1,000",
    1999: "1,999",
    653_012.4: "653,012",
    999_999.9: "1 M",
    12_345_678: "12.3 M",
    4e11: "400 G",
    2.5e13: "25 T",
}
AMOUNTS = {
    0: "$0.00",
    0.1: "$0.10",
    0.0867: "$0.087",
    0.04: "$0.04",
    0.0012: "$0.0012",
    0.996: "$1.00",
    12.5: "$12.50",
    1234.567: "$1,234.57",
}


@pytest.mark.parametrize(("number", "text"), COUNTS.items())
def test_a_count_is_shown_in_full_up_to_six_digits(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(("amount", "text"), AMOUNTS.items())
def test_money_keeps_its_cents_and_below_ten_of_them_two_digits(amount: float, text: str) -> None:
    assert money(amount) == text


def test_the_smallest_amounts_keep_their_order_of_magnitude() -> None:
    assert money(0.000012) == "$1.2e-05"
