//! G.711: A-law and µ-law (ITU-T G.711), one octet a sample at 8,000 Hz.

/// µ-law's bias, and where it clips.
const BIAS: i32 = 0x84;
const CLIP: i32 = 32_635;

const fn alaw(code: u8) -> i16 {
    let code = (code ^ 0x55) as i32;
    let (segment, low) = ((code & 0x70) >> 4, ((code & 0x0F) << 4) + 8);
    let magnitude = if segment == 0 { low } else { (low + 0x100) << (segment - 1) };
    (if code & 0x80 != 0 { magnitude } else { -magnitude }) as i16
}

const fn ulaw(code: u8) -> i16 {
    let code = !code as i32;
    let magnitude = ((((code & 0x0F) << 3) + BIAS) << ((code & 0x70) >> 4)) - BIAS;
    (if code & 0x80 != 0 { -magnitude } else { magnitude }) as i16
}

const fn table(of_a: bool) -> [i16; 256] {
    let (mut made, mut code) = ([0; 256], 0);
    while code < 256 {
        made[code] = if of_a { alaw(code as u8) } else { ulaw(code as u8) };
        code += 1;
    }
    made
}

static ALAW: [i16; 256] = table(true);
static ULAW: [i16; 256] = table(false);

#[must_use]
pub fn decode_alaw(code: u8) -> i16 {
    ALAW[usize::from(code)]
}

#[must_use]
pub fn decode_ulaw(code: u8) -> i16 {
    ULAW[usize::from(code)]
}

/// The segment of a magnitude whose first has `bits` bits.
fn segment(magnitude: i32, bits: u32) -> u32 {
    (32 - magnitude.leading_zeros()).saturating_sub(bits)
}

#[must_use]
pub fn encode_alaw(sample: i16) -> u8 {
    let (sign, magnitude) = if sample >= 0 {
        (0x80, i32::from(sample))
    } else {
        (0, -i32::from(sample) - 1)
    };
    let segment = segment(magnitude, 8).min(7);
    let mantissa = magnitude >> if segment == 0 { 4 } else { segment + 3 } & 0x0F;
    // At most 255 by the masks.
    ((sign | (segment as i32) << 4 | mantissa) as u8) ^ 0x55
}

#[must_use]
pub fn encode_ulaw(sample: i16) -> u8 {
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = i32::from(sample).abs().min(CLIP) + BIAS;
    let segment = segment(magnitude, 8).min(7);
    let mantissa = magnitude >> (segment + 3) & 0x0F;
    !((sign | (segment as i32) << 4 | mantissa) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_after_decoding_and_encoding() {
        for code in 0..=255 {
            assert_eq!(encode_alaw(decode_alaw(code)), code, "A-law");
            // µ-law has two zeros.
            let again = encode_ulaw(decode_ulaw(code));
            assert!(again == code || (code == 0x7F && again == 0xFF), "µ-law {code:#x}: {again:#x}");
        }
    }

    #[test]
    fn every_sample_is_within_half_a_step() {
        for sample in i16::MIN..=i16::MAX {
            let step = (i32::from(sample).abs() / 16).max(16);
            for back in [decode_alaw(encode_alaw(sample)), decode_ulaw(encode_ulaw(sample))] {
                let off = (i32::from(back) - i32::from(sample)).abs();
                assert!(off <= step, "{sample} became {back}");
            }
        }
    }
}
