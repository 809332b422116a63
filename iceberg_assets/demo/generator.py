"""The files a shop's systems would export for one day: customers, products, orders and clickstream, from a seed.

The same seed, day and revision give the same bytes. Revision 0 is the day as first exported; each later one restates the
day as systems do: some orders arrive late, some change their status. Days overlap: an order placed on one day may be
exported again, with a new status, by the next.
"""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np

CUSTOMERS = 400
COUNTRIES = {"DE": 0.34, "FR": 0.22, "NL": 0.16, "PL": 0.14, "ES": 0.09, "SE": 0.05}
CATEGORIES = ("kitchen", "garden", "books", "toys", "sports")
FIRST = ("Ada", "Emil", "Noor", "Jonas", "Mila", "Luca", "Ines", "Oskar", "Zofia", "Hugo", "Freja", "Mateo")
LAST = ("Becker", "Moreau", "de Vries", "Nowak", "Garcia", "Lindqvist", "Hoffmann", "Petit", "Jansen", "Kowalska")
PAGES = ("home", "search", "product", "basket", "checkout")


@dataclass(frozen=True)
class Export:
    """One day of one revision."""

    day: date
    revision: int = 0
    seed: int = 7
    orders_per_day: int = 600

    def files(self) -> dict[str, str]:
        """Text by file name."""
        return {
            "customers.csv": _csv(self.customers()),
            "products.csv": _csv(self.products()),
            "orders.jsonl": _json_lines(self.orders()),
            "events.jsonl": _json_lines(self.events()),
        }

    def customers(self) -> Iterator[dict[str, object]]:
        """The customers who signed up or moved that day; everyone, on the first of a month."""
        dice = self._dice("customers")
        for number in range(CUSTOMERS):
            own = np.random.default_rng([self.seed, number])
            first, last = own.choice(FIRST), own.choice(LAST)
            moved = dice.random() < 0.02
            if moved or dice.random() < 0.25 or self.day.day == 1:
                yield {
                    "customer_id": number,
                    "name": f"{first} {last}",
                    "email": f"{first}.{last}.{number}@example.com".lower().replace(" ", ""),
                    "country": (dice if moved else own).choice(list(COUNTRIES), p=list(COUNTRIES.values())),
                    "updated_at": self._moment(dice, 0).isoformat(),
                }

    def products(self) -> Iterator[dict[str, object]]:
        """The whole catalogue, at the prices of that revision."""
        dice = self._dice("products")
        for number in range(60):
            base = np.random.default_rng([self.seed, 1_000_000 + number]).lognormal(3, 0.6)
            yield {
                "product_id": number,
                "title": f"{CATEGORIES[number % len(CATEGORIES)]} item {number:03d}",
                "category": CATEGORIES[number % len(CATEGORIES)],
                "price": f"{base * dice.uniform(0.95, 1.05):.2f}",
            }

    def orders(self) -> Iterator[dict[str, object]]:
        """The day's orders. A revision adds late ones and moves open ones on."""
        dice = np.random.default_rng([self.seed, self.day.toordinal(), 2])
        for number in range(self.orders_per_day + self.revision * 25):
            quantity, price = int(dice.integers(1, 5)), float(dice.lognormal(3, 0.6))
            status = dice.choice(["open", "paid", "shipped", "cancelled"], p=[0.2, 0.3, 0.45, 0.05])
            if status == "open" and dice.random() < 1 - 0.5**self.revision:
                status = "paid"
            yield {
                "order_id": f"{self.day:%Y%m%d}-{number:05d}",
                "customer_id": min(int(dice.zipf(1.3)), CUSTOMERS) - 1,
                "product_id": int(dice.integers(0, 60)),
                "quantity": quantity,
                "amount": f"{quantity * price:.2f}",
                "status": str(status),
                "ordered_at": self._moment(dice, 0).isoformat(),
            }

    def events(self) -> Iterator[dict[str, object]]:
        """Visits of a few clicks each. Some clicks are sent twice, as trackers do."""
        dice = np.random.default_rng([self.seed, self.day.toordinal(), 3])
        for visit in range(self.orders_per_day + self.revision * 25):
            customer, at = int(dice.integers(0, CUSTOMERS)), self._moment(dice, 0)
            for click in range(int(dice.integers(1, len(PAGES) + 1))):
                at += timedelta(seconds=int(dice.integers(5, 240)))
                if at.date() > self.day:
                    break
                event = {
                    "event_id": f"{self.day:%Y%m%d}-{visit:05d}-{click}",
                    "customer_id": customer,
                    "page": PAGES[click],
                    "occurred_at": at.isoformat(),
                }
                yield from [event] * (2 if dice.random() < 0.02 else 1)

    def _dice(self, what: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.day.toordinal(), self.revision, len(what)])

    def _moment(self, dice: np.random.Generator, hour: int) -> datetime:
        midnight = datetime(self.day.year, self.day.month, self.day.day, hour, tzinfo=UTC)
        return midnight + timedelta(seconds=int(dice.integers(0, 86_000)))


def _csv(rows: Iterator[dict[str, object]]) -> str:
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, listed[0] if listed else [])
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def _json_lines(rows: Iterator[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
