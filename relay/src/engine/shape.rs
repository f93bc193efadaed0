//! How many words each command takes, and whether modifiers and sub-commands go with it; judged before the command is read, as rtpproxy does.

use shunt_rtpproxy::ErrorCode;

/// A verb with the fewest and the most words (itself included), and whether it takes modifiers and sub-commands.
struct Shape {
    fewest: usize,
    most: usize,
    modifiers: bool,
    subcommands: bool,
}

fn shape(verb: &[u8]) -> Option<Shape> {
    let (fewest, most, modifiers, subcommands) = match verb {
        b"U" => (5, 8, true, true),
        b"L" => (5, 6, true, true),
        b"D" | b"R" | b"N" => (3, 4, true, false),
        b"S" => (3, 4, false, false),
        b"P" => (5, 6, true, false),
        b"C" => (4, 5, true, false),
        b"VF" => (2, 2, false, false),
        b"V" | b"X" => (1, 1, false, false),
        b"I" => (1, 2, true, false),
        b"Q" => (3, 18, true, true),
        b"G" => (1, 32, true, false),
        _ => return None,
    };
    Some(Shape {
        fewest,
        most,
        modifiers,
        subcommands,
    })
}

/// Check the words of a command.
pub(super) fn check(body: &[u8]) -> Result<(), ErrorCode> {
    let words = || body.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let count = words().take_while(|word| *word != b"&&").count();
    let Some(word) = words().next().filter(|_| count > 0) else {
        return Err(ErrorCode::SYNTAX);
    };
    let length = if word.len() >= 2 && word[..2].eq_ignore_ascii_case(b"VF") {
        2
    } else {
        1
    };
    let shape = shape(&word[..length].to_ascii_uppercase()).ok_or(ErrorCode::UNKNOWN_COMMAND)?;
    if !(shape.fewest..=shape.most).contains(&count) {
        return Err(ErrorCode::ARGUMENT_COUNT);
    }
    if word.len() > length && !shape.modifiers {
        return Err(ErrorCode::MODIFIERS_NOT_ALLOWED);
    }
    if words().count() > count && !shape.subcommands {
        return Err(ErrorCode::BAD_SUBCOMMAND);
    }
    Ok(())
}
