//! Which of the last numbers of a stream were seen, for packets that may come out of order (RFC 3711 section 3.3.2).

/// So far back numbers are told apart.
const SIZE: i64 = 1024;
const WORDS: usize = 16;

/// A replay window.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// By number modulo [`SIZE`].
    noted: [u64; WORDS],
    highest: Option<i64>,
}

fn place(number: i64) -> (usize, u64) {
    // Less than SIZE.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = number.rem_euclid(SIZE) as usize;
    (at / 64, 1 << (at % 64))
}

impl Window {
    /// Whether a number was not noted yet, and is not too far back to tell.
    #[must_use]
    pub fn is_new(&self, number: i64) -> bool {
        let (word, bit) = place(number);
        self.highest
            .is_none_or(|highest| number > highest || (number > highest - SIZE && self.noted[word] & bit == 0))
    }

    /// Note a number; whether it is new.
    pub fn note(&mut self, number: i64) -> bool {
        if !self.is_new(number) {
            return false;
        }
        let highest = self.highest.unwrap_or(number - 1);
        for passed in highest.max(number - SIZE) + 1..=number {
            let (word, bit) = place(passed);
            self.noted[word] &= !bit;
        }
        let (word, bit) = place(number);
        self.noted[word] |= bit;
        self.highest = Some(highest.max(number));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn no_number_is_new_twice(numbers in proptest::collection::vec(0i64..4000, 1..300)) {
            let mut window = Window::default();
            let mut noted = HashSet::new();
            let mut highest = i64::MIN;
            for number in numbers {
                let due = !noted.contains(&number) && (highest == i64::MIN || number > highest - SIZE);
                prop_assert_eq!(window.is_new(number), due);
                prop_assert_eq!(window.note(number), due);
                noted.insert(number);
                if due {
                    highest = highest.max(number);
                }
            }
        }
    }
}
