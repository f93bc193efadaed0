//! G.722 at 64 kbit/s (ITU-T G.722): two bands of ADPCM, one octet for two samples at 16,000 Hz. Blocks have the Recommendation's names.

const WL: [i32; 8] = [-60, -30, 58, 172, 334, 538, 1198, 3042];
const RL42: [usize; 16] = [0, 7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 2, 1, 0];
const ILB: [i32; 32] = [
    2048, 2093, 2139, 2186, 2233, 2282, 2332, 2383, 2435, 2489, 2543, 2599, 2656, 2714, 2774, 2834, 2896, 2960, 3025, 3091, 3158, 3228,
    3298, 3371, 3444, 3520, 3597, 3676, 3756, 3838, 3922, 4008,
];
const WH: [i32; 3] = [0, -214, 798];
const RH2: [usize; 4] = [2, 1, 2, 1];
const QM2: [i32; 4] = [-7408, -1616, 7408, 1616];
const QM4: [i32; 16] = [
    0, -20456, -12896, -8968, -6288, -4240, -2584, -1200, 20456, 12896, 8968, 6288, 4240, 2584, 1200, 0,
];
const QM6: [i32; 64] = [
    -136, -136, -136, -136, -24808, -21904, -19008, -16704, -14984, -13512, -12280, -11192, -10232, -9360, -8576, -7856, -7192, -6576,
    -6000, -5456, -4944, -4464, -4008, -3576, -3168, -2776, -2400, -2032, -1688, -1360, -1040, -728, 24808, 21904, 19008, 16704, 14984,
    13512, 12280, 11192, 10232, 9360, 8576, 7856, 7192, 6576, 6000, 5456, 4944, 4464, 4008, 3576, 3168, 2776, 2400, 2032, 1688, 1360, 1040,
    728, 432, 136, -432, -136,
];
const Q6: [i32; 30] = [
    0, 35, 72, 110, 150, 190, 233, 276, 323, 370, 422, 473, 530, 587, 650, 714, 786, 858, 940, 1023, 1121, 1219, 1339, 1458, 1612, 1765,
    1980, 2195, 2557, 2919,
];
const ILN: [i32; 31] = [
    0, 63, 62, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4,
];
const ILP: [i32; 31] = [
    0, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32,
];
const QMF: [i32; 12] = [3, -11, 12, 32, -210, 951, 3876, -805, 362, -156, 53, -11];

fn saturate(value: i32) -> i32 {
    value.clamp(i32::from(i16::MIN), i32::from(i16::MAX))
}

/// A table's entry; codes are masked, so there always is one.
fn entry(table: &[i32], at: i32) -> i32 {
    usize::try_from(at).ok().and_then(|at| table.get(at)).copied().unwrap_or(0)
}

/// The adaptive predictor and the quantizer's scale of one band.
#[derive(Clone, Debug, Default)]
struct Band {
    s: i32,
    sz: i32,
    r: [i32; 3],
    a: [i32; 3],
    p: [i32; 3],
    d: [i32; 7],
    b: [i32; 7],
    nb: i32,
    det: i32,
}

impl Band {
    /// LOGSCL and SCALEL, or LOGSCH and SCALEH.
    fn scale(&mut self, weight: i32, most: i32, shift: i32) {
        self.nb = (((self.nb * 127) >> 7) + weight).clamp(0, most);
        let (mantissa, exponent) = (entry(&ILB, self.nb >> 6 & 31), shift - (self.nb >> 11));
        let scaled = if exponent < 0 {
            mantissa << -exponent
        } else {
            mantissa >> exponent
        };
        self.det = scaled << 2;
    }

    /// Block 4: the predictor follows the quantized difference.
    fn predict(&mut self, d: i32) {
        // RECONS, PARREC
        self.d[0] = d;
        self.r[0] = saturate(self.s + d);
        self.p[0] = saturate(self.sz + d);
        // UPPOL2
        let signs = self.p.map(|p| p >> 15);
        let wd1 = saturate(self.a[1] << 2);
        let wd2 = (if signs[0] == signs[1] { -wd1 } else { wd1 }).min(32_767);
        let wd3 = (wd2 >> 7) + if signs[0] == signs[2] { 128 } else { -128 };
        let second = (wd3 + ((self.a[2] * 32_512) >> 15)).clamp(-12_288, 12_288);
        // UPPOL1
        let wd1 = if signs[0] == signs[1] { 192 } else { -192 };
        let limit = saturate(15_360 - second);
        let first = saturate(wd1 + ((self.a[1] * 32_640) >> 15)).clamp(-limit, limit);
        // UPZERO
        let wd1 = if d == 0 { 0 } else { 128 };
        let sign = d >> 15;
        for (b, delayed) in self.b.iter_mut().zip(&self.d).skip(1) {
            let wd2 = if delayed >> 15 == sign { wd1 } else { -wd1 };
            *b = saturate(wd2 + ((*b * 32_640) >> 15));
        }
        // DELAYA
        self.d.copy_within(0..6, 1);
        (self.r[2], self.r[1]) = (self.r[1], self.r[0]);
        (self.p[2], self.p[1]) = (self.p[1], self.p[0]);
        (self.a[2], self.a[1]) = (second, first);
        // FILTEP, FILTEZ, PREDIC
        let pole = |a: i32, r: i32| (a * saturate(r + r)) >> 15;
        let sp = saturate(pole(self.a[1], self.r[1]) + pole(self.a[2], self.r[2]));
        let zeros = self.b.iter().zip(&self.d).skip(1);
        self.sz = saturate(zeros.map(|(b, d)| (b * saturate(d + d)) >> 15).sum());
        self.s = saturate(sp + self.sz);
    }
}

fn bands() -> [Band; 2] {
    let band = |det| Band { det, ..Band::default() };
    [band(32), band(8)]
}

/// The two halves of the quadrature mirror filter.
fn mirror(history: &[i32; 24]) -> (i32, i32) {
    let (mut even, mut odd) = (0, 0);
    for (at, pair) in history.chunks_exact(2).enumerate() {
        odd += pair[0] * QMF[at];
        even += pair[1] * QMF[11 - at];
    }
    (even, odd)
}

fn shift_in(history: &mut [i32; 24], a: i32, b: i32) {
    history.copy_within(2.., 0);
    (history[22], history[23]) = (a, b);
}

#[derive(Clone, Debug)]
pub struct Decoder {
    low: Band,
    high: Band,
    history: [i32; 24],
}

#[derive(Clone, Debug)]
pub struct Encoder {
    low: Band,
    high: Band,
    history: [i32; 24],
}

impl Default for Decoder {
    fn default() -> Self {
        let [low, high] = bands();
        Self {
            low,
            high,
            history: [0; 24],
        }
    }
}

impl Default for Encoder {
    fn default() -> Self {
        let [low, high] = bands();
        Self {
            low,
            high,
            history: [0; 24],
        }
    }
}

impl Decoder {
    /// Two samples for each octet.
    pub fn decode(&mut self, data: &[u8], out: &mut Vec<i16>) {
        for octet in data {
            let code = i32::from(*octet);
            let (low, high) = (code & 0x3F, usize::from(*octet >> 6));
            // INVQBL, RECONS, LIMIT
            let rlow = (self.low.s + ((self.low.det * entry(&QM6, low)) >> 15)).clamp(-16_384, 16_383);
            // INVQAL
            let short = low >> 2;
            let dlow = (self.low.det * entry(&QM4, short)) >> 15;
            self.low.scale(weight_low(short), 18_432, 8);
            self.low.predict(dlow);
            // INVQAH, RECONS, LIMIT
            let dhigh = (self.high.det * QM2[high]) >> 15;
            let rhigh = (dhigh + self.high.s).clamp(-16_384, 16_383);
            self.high.scale(WH[RH2[high]], 22_528, 10);
            self.high.predict(dhigh);
            shift_in(&mut self.history, rlow + rhigh, rlow - rhigh);
            let (even, odd) = mirror(&self.history);
            // Saturated, so they fit.
            out.extend([saturate(even >> 11) as i16, saturate(odd >> 11) as i16]);
        }
    }
}

fn weight_low(short: i32) -> i32 {
    let at = usize::try_from(short & 15).unwrap_or(0);
    WL[RL42[at]]
}

impl Encoder {
    /// One octet for each pair of samples.
    pub fn encode(&mut self, samples: &[i16], out: &mut Vec<u8>) {
        for pair in samples.chunks_exact(2) {
            shift_in(&mut self.history, i32::from(pair[0]), i32::from(pair[1]));
            let (even, odd) = mirror(&self.history);
            let (xlow, xhigh) = ((even + odd) >> 14, (even - odd) >> 14);
            // SUBTRA, QUANTL
            let el = saturate(xlow - self.low.s);
            let magnitude = if el >= 0 { el } else { -(el + 1) };
            let beyond = |level: &&i32| magnitude >= (**level * self.low.det) >> 12;
            let at = 1 + Q6[1..].iter().take_while(beyond).count();
            let ilow = if el < 0 { ILN[at] } else { ILP[at] };
            // INVQAL
            let dlow = (self.low.det * entry(&QM4, ilow >> 2)) >> 15;
            self.low.scale(weight_low(ilow >> 2), 18_432, 8);
            self.low.predict(dlow);
            // SUBTRA, QUANTH
            let eh = saturate(xhigh - self.high.s);
            let magnitude = if eh >= 0 { eh } else { -(eh + 1) };
            let outer = magnitude >= (564 * self.high.det) >> 12;
            let ihigh = match (eh < 0, outer) {
                (true, false) => 1,
                (true, true) => 0,
                (false, false) => 3,
                (false, true) => 2,
            };
            let dhigh = (self.high.det * QM2[ihigh]) >> 15;
            self.high.scale(WH[RH2[ihigh]], 22_528, 10);
            self.high.predict(dhigh);
            // Six bits and two.
            out.push((ihigh as u8) << 6 | (ilow & 0x3F) as u8);
        }
    }
}
