//! Free rows of a table.

/// Allocates row numbers from a range.
#[derive(Debug)]
pub struct Free {
    given_back: Vec<u32>,
    next: u32,
    end: u32,
}

impl Free {
    /// Makes an allocator in which all rows of `first..end` are free.
    pub fn new(first: u32, end: u32) -> Self {
        Self {
            given_back: Vec::new(),
            next: first,
            end,
        }
    }

    pub fn take(&mut self) -> Option<u32> {
        self.given_back.pop().or_else(|| {
            let row = self.next;
            (row < self.end).then(|| {
                self.next += 1;
                row
            })
        })
    }

    pub fn give(&mut self, row: u32) {
        self.given_back.push(row);
    }

    /// Allocates these rows of an allocator without allocations.
    pub fn claim(&mut self, is_taken: impl Fn(u32) -> bool, highest: u32) {
        self.given_back = (self.next..highest.saturating_add(1).min(self.end))
            .filter(|row| !is_taken(*row))
            .collect();
        self.next = self.next.max(highest.saturating_add(1)).min(self.end);
    }

    /// Returns the number of free rows.
    pub fn left(&self) -> usize {
        self.given_back.len() + (self.end - self.next) as usize
    }
}
