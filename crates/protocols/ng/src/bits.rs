//! Small sets of named facts.

/// A set with one bit for each name; `Display` lists the names.
macro_rules! bit_set {
    ($(#[$outer:meta])* $set:ident: $int:ty { $($(#[$inner:meta])* $bit:ident = $name:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $set($int);

        impl $set {
            pub const NONE: Self = Self(0);
            $crate::bits::bit_set!(@bits $int, 1, $($(#[$inner])* $bit)*);

            const NAMES: &'static [(Self, &'static str)] = &[$((Self::$bit, $name)),*];

            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether all of `other` is in this set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any of `other` is in this set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The names of what is in the set.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                Self::NAMES.iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| *name)
            }

            /// The one of this name.
            #[must_use]
            pub fn named(name: &[u8]) -> Option<Self> {
                Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(bit, _)| *bit)
            }
        }

        impl std::ops::BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $set {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_set().entries(self.names()).finish()
            }
        }

        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.names().collect::<Vec<_>>().join(", "))
            }
        }
    };
    (@bits $int:ty, $value:expr,) => {};
    (@bits $int:ty, $value:expr, $(#[$first_meta:meta])* $first:ident $($(#[$meta:meta])* $rest:ident)*) => {
        $(#[$first_meta])*
        pub const $first: Self = Self($value);
        $crate::bits::bit_set!(@bits $int, $value << 1, $($(#[$meta])* $rest)*);
    };
}

pub(crate) use bit_set;
