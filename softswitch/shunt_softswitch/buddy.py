"""Room for lists of different lengths in one array: blocks of powers of two, halved and joined again. No I/O."""

from __future__ import annotations


class Buddy:
    """Hands out positions in an array of `size` words (a power of two); position 0 is never among them."""

    def __init__(self, size: int, least: int = 4) -> None:
        """least: words of the smallest block, a power of two."""
        if size & (size - 1) or least & (least - 1) or size < 2 * least:
            raise ValueError(f"an array of {size} words in blocks of at least {least}")
        self.size = size
        self._least = least
        self._free: list[set[int]] = [set() for _ in range((size // least).bit_length())]  # by order: 0 is `least` words
        self._free[-1].add(0)
        self.used = 0
        self.claim(0, least)

    def _order(self, words: int) -> int:
        return max(-(-words // self._least) - 1, 0).bit_length()

    def take(self, words: int) -> int:
        """The position of a block of at least `words` words; 0 when there is none."""
        order = wanted = self._order(words)
        while order < len(self._free) and not self._free[order]:
            order += 1
        if order >= len(self._free):
            return 0
        at = self._free[order].pop()
        while order > wanted:
            order -= 1
            self._free[order].add(at + (self._least << order))
        self.used += self._least << wanted
        return at

    def give(self, at: int, words: int) -> None:
        """Give a block back that was taken with this many words."""
        order = self._order(words)
        self.used -= self._least << order
        while order < len(self._free) - 1:
            other = at ^ (self._least << order)
            if other not in self._free[order]:
                break
            self._free[order].discard(other)
            at &= other
            order += 1
        self._free[order].add(at)

    def claim(self, at: int, words: int) -> bool:
        """Take the block at this very position; False when it is not wholly free, or no such block."""
        order = self._order(words)
        if at % (self._least << order):
            return False
        for above in range(order, len(self._free)):
            head = at & ~((self._least << above) - 1)
            if head in self._free[above]:
                break
        else:
            return False
        self._free[above].discard(head)
        while above > order:
            above -= 1
            half = self._least << above
            if at & half:
                self._free[above].add(head)
                head += half
            else:
                self._free[above].add(head + half)
        self.used += self._least << order
        return True
