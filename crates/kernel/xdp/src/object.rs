//! Loading an object file: sizes, maps that exist already, constants, programs to leave out.

use crate::{Error, Result, error::from_libbpf};
use libbpf_rs::{MapCore as _, MapHandle, MapType, ObjectBuilder, PrintLevel, ProgramImpl};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

/// What libbpf said last, most of it the verifier's words.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
static PRINT: Once = Once::new();
const KEPT_LINES: usize = 40;

fn keep(level: PrintLevel, text: String) {
    if level == PrintLevel::Debug {
        return;
    }
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() == KEPT_LINES {
        said.remove(0);
    }
    said.push(text);
}

fn take_said() -> String {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *said).concat()
}

/// A value for the program's read-only data: bytes at an offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constant {
    pub offset: usize,
    pub bytes: Vec<u8>,
}

/// What to load.
#[derive(Default)]
pub struct Load<'a> {
    pub name: &'a str,
    pub object: &'a [u8],
    /// By map name: the number of elements, or of a data section the bytes.
    pub sizes: BTreeMap<&'a str, usize>,
    /// Maps to use instead of new ones, by name.
    pub reuse: BTreeMap<String, BorrowedFd<'a>>,
    /// For `.rodata`.
    pub constants: &'a [Constant],
    /// Programs to leave out, whose verification would take time.
    pub without: &'a [&'a str],
}

/// File descriptors of programs and maps, by name.
#[derive(Debug, Default)]
pub struct Loaded {
    pub programs: BTreeMap<String, OwnedFd>,
    pub maps: BTreeMap<String, OwnedFd>,
}

impl Loaded {
    /// # Errors
    /// When there is no such map.
    pub fn map(&self, name: &str) -> Result<BorrowedFd<'_>> {
        self.maps.get(name).map(AsFd::as_fd).ok_or_else(|| missing("map", name))
    }

    /// # Errors
    /// When there is no such program.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>> {
        self.programs.get(name).map(AsFd::as_fd).ok_or_else(|| missing("program", name))
    }
}

fn missing(kind: &str, name: &str) -> Error {
    Error::new(
        format!("there is no {kind} {name}"),
        std::io::Error::from_raw_os_error(libc::ENOENT),
    )
}

impl Load<'_> {
    /// Load it.
    ///
    /// # Errors
    /// With the verifier's words, where it was the verifier.
    pub fn load(&self) -> Result<Loaded> {
        PRINT.call_once(|| {
            libbpf_rs::set_print(Some((PrintLevel::Info, keep)));
        });
        take_said();
        let failed = |error: libbpf_rs::Error| {
            let said = take_said();
            let tail = said.len().saturating_sub(1500);
            let tail = (tail..=said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(said.len());
            from_libbpf(format!("cannot load {}\n{}", self.name, &said[tail..]), &error)
        };
        let mut open = ObjectBuilder::default().open_memory(self.object).map_err(failed)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(fd) = self.reuse.get(&name) {
                if name.starts_with(".data") {
                    // libbpf has mapped the section in its own size, and would unmap it in that of the map that takes its place.
                    let info = libbpf_rs::MapInfo::new(*fd).map_err(failed)?;
                    map.set_value_size(info.info.value_size).map_err(failed)?;
                }
                map.reuse_fd(*fd).map_err(failed)?;
            } else if let Some(size) = self.sizes.get(name.as_str()) {
                let size = u32::try_from(*size).map_err(|_| too_large(&name))?;
                if name.starts_with(".data") {
                    map.set_value_size(size).map_err(failed)?;
                } else {
                    map.set_max_entries(size).map_err(failed)?;
                }
            } else if name.ends_with(".rodata") {
                let data = map.initial_value_mut().ok_or_else(|| missing("section", &name))?;
                for constant in self.constants {
                    let room = data.get_mut(constant.offset..constant.offset + constant.bytes.len());
                    room.ok_or_else(|| missing("constant", &name))?.copy_from_slice(&constant.bytes);
                }
            }
        }
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if self.without.contains(&name.as_str()) {
                program.set_autoload(false);
            }
        }
        let object = open.load().map_err(failed)?;
        let mut loaded = Loaded::default();
        for program in object.progs() {
            let name = program.name().to_string_lossy().into_owned();
            if program.autoload() {
                loaded.programs.insert(name, duplicate(program_fd(&program))?);
            }
        }
        for map in object.maps() {
            loaded
                .maps
                .insert(map.name().to_string_lossy().into_owned(), duplicate(map.as_fd())?);
        }
        Ok(loaded)
    }
}

fn too_large(name: &str) -> Error {
    Error::new(
        format!("map {name} is larger than the kernel takes"),
        std::io::Error::from_raw_os_error(libc::E2BIG),
    )
}

fn program_fd<'a, T>(program: &'a ProgramImpl<'_, T>) -> BorrowedFd<'a> {
    program.as_fd()
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned()
        .map_err(|error| Error::new("cannot duplicate a file descriptor", error))
}

/// An array without BTF, for tests and measurements.
///
/// # Errors
/// When the kernel makes none.
pub fn create_array(name: &str, value_size: u32, elements: u32) -> Result<OwnedFd> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some(name), 4, value_size, elements, &options)
        .map_err(|error| from_libbpf(format!("cannot make map {name}"), &error))?;
    duplicate(map.as_fd())
}

/// The names of an object's maps.
///
/// # Errors
/// When it is no object.
pub fn map_names(object: &[u8]) -> Result<Vec<String>> {
    let open = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|error| from_libbpf("cannot read an object", &error))?;
    Ok(open.maps().map(|map| map.name().to_string_lossy().into_owned()).collect())
}
