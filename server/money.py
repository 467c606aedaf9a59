"""Money is an integer of units, which are 1/10000 CNY, so that sums are exact."""

from decimal import Decimal, InvalidOperation

UNITS_PER_CNY = 10_000
MAX_CNY = Decimal(100_000_000)


def parse_money(text: str) -> int:
    """Return the units of an amount: '0.10' -> 1000.

    Raises ValueError for anything but a plain amount with at most four decimals.
    """
    try:
        amount = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"'{text}' is not an amount of money; write it like 0.10") from error
    if not amount.is_finite() or amount < 0 or amount > MAX_CNY:
        raise ValueError(f"'{text}' is not an amount of money between 0 and {MAX_CNY} CNY")
    units = amount * UNITS_PER_CNY
    if units != units.to_integral_value():
        raise ValueError(f"'{text}' has more than four decimals")
    return int(units)


def format_money(units: int) -> str:
    """Return an amount as text: 1000 -> '0.10', with two decimals, or up to four if needed."""
    sign = "-" if units < 0 else ""
    cny, part = divmod(abs(units), UNITS_PER_CNY)
    decimals = f"{part:04d}"
    trimmed = decimals[:2] + decimals[2:].rstrip("0")
    return f"{sign}{cny}.{trimmed}"


def optional_money(units: int | None) -> str | None:
    """Return an amount as text; None for no limit."""
    return None if units is None else format_money(units)
