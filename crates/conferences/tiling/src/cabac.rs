//! The arithmetic encoder that H.264 (clause 9.3.4) and H.265 (clause 9.3.5) have in common, for slices that the mixer makes itself.

use crate::bits::Writer;

/// Table 9-44.
#[rustfmt::skip]
const RANGES: [[u16; 4]; 64] = [
    [128, 176, 208, 240], [128, 167, 197, 227], [128, 158, 187, 216], [123, 150, 178, 205], [116, 142, 169, 195], [111, 135, 160, 185],
    [105, 128, 152, 175], [100, 122, 144, 166], [95, 116, 137, 158], [90, 110, 130, 150], [85, 104, 123, 142], [81, 99, 117, 135],
    [77, 94, 111, 128], [73, 89, 105, 122], [69, 85, 100, 116], [66, 80, 95, 110], [62, 76, 90, 104], [59, 72, 86, 99], [56, 69, 81, 94],
    [53, 65, 77, 89], [51, 62, 73, 85], [48, 59, 69, 80], [46, 56, 66, 76], [43, 53, 63, 72], [41, 50, 59, 69], [39, 48, 56, 65],
    [37, 45, 54, 62], [35, 43, 51, 59], [33, 41, 48, 56], [32, 39, 46, 53], [30, 37, 43, 50], [29, 35, 41, 48], [27, 33, 39, 45],
    [26, 31, 37, 43], [24, 30, 35, 41], [23, 28, 33, 39], [22, 27, 32, 37], [21, 26, 30, 35], [20, 24, 29, 33], [19, 23, 27, 31],
    [18, 22, 26, 30], [17, 21, 25, 28], [16, 20, 23, 27], [15, 19, 22, 25], [14, 18, 21, 24], [14, 17, 20, 23], [13, 16, 19, 22],
    [12, 15, 18, 21], [12, 14, 17, 20], [11, 14, 16, 19], [11, 13, 15, 18], [10, 12, 15, 17], [10, 12, 14, 16], [9, 11, 13, 15],
    [9, 11, 12, 14], [8, 10, 12, 14], [8, 9, 11, 13], [7, 9, 11, 12], [7, 9, 10, 12], [7, 8, 10, 11], [6, 8, 9, 11], [6, 7, 9, 10],
    [6, 7, 8, 9], [2, 2, 2, 2],
];
/// Table 9-45, after the less probable symbol.
const LESS: [u8; 64] = [
    0, 0, 1, 2, 2, 4, 4, 5, 6, 7, 8, 9, 9, 11, 11, 12, 13, 13, 15, 15, 16, 16, 18, 18, 19, 19, 21, 21, 22, 22, 23, 24, 24, 25, 26, 26, 27,
    27, 28, 29, 29, 30, 30, 30, 31, 32, 32, 33, 33, 33, 34, 34, 35, 35, 35, 36, 36, 36, 37, 37, 37, 38, 38, 63,
];

/// A context variable.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    state: u8,
    probable: bool,
}

impl Context {
    /// From the values m and n of tables 9-12 to 9-33 (clause 9.3.1.1).
    pub(crate) fn new(slope: i32, start: i32, quantiser: i32) -> Self {
        let state = ((slope * quantiser.clamp(0, 51)) >> 4) + start;
        // 1 to 126.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let state = state.clamp(1, 126) as u8;
        Self {
            state: if state <= 63 { 63 - state } else { state - 64 },
            probable: state > 63,
        }
    }
}

pub(crate) struct Encoder {
    low: u32,
    range: u32,
    outstanding: u32,
    first: bool,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            low: 0,
            range: 510,
            outstanding: 0,
            first: true,
        }
    }

    pub(crate) fn bin(&mut self, context: &mut Context, bin: bool, out: &mut Writer) {
        let state = usize::from(context.state);
        let less = u32::from(RANGES[state][(self.range >> 6 & 3) as usize]);
        self.range -= less;
        if bin == context.probable {
            context.state = (context.state + 1).min(62);
        } else {
            self.low += self.range;
            self.range = less;
            context.probable ^= context.state == 0;
            context.state = LESS[state];
        }
        self.renormalise(out);
    }

    /// A bin whose values are equally probable.
    pub(crate) fn bypass(&mut self, bin: bool, out: &mut Writer) {
        self.low = (self.low << 1) + if bin { self.range } else { 0 };
        if self.low >= 1024 {
            self.low -= 1024;
            self.bit(true, out);
        } else if self.low < 512 {
            self.bit(false, out);
        } else {
            self.low -= 512;
            self.outstanding += 1;
        }
    }

    /// Whether the slice ends here; if so, its last bits with the trailing one.
    pub(crate) fn end(&mut self, end: bool, out: &mut Writer) {
        self.range -= 2;
        if !end {
            self.renormalise(out);
            return;
        }
        self.low += self.range;
        self.range = 2;
        self.renormalise(out);
        self.bit(self.low >> 9 & 1 == 1, out);
        out.put(self.low >> 7 & 3 | 1, 2);
    }

    fn renormalise(&mut self, out: &mut Writer) {
        while self.range < 256 {
            if self.low < 256 {
                self.bit(false, out);
            } else if self.low >= 512 {
                self.low -= 512;
                self.bit(true, out);
            } else {
                self.low -= 256;
                self.outstanding += 1;
            }
            self.range <<= 1;
            self.low <<= 1;
        }
    }

    fn bit(&mut self, bit: bool, out: &mut Writer) {
        if self.first {
            self.first = false;
        } else {
            out.flag(bit);
        }
        (0..self.outstanding).for_each(|_| out.flag(!bit));
        self.outstanding = 0;
    }
}
