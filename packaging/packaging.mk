# Installing: a private virtualenv with the pinned libraries, units, manual, examples; and the Debian package of all that.
PREFIX ?= /usr/local
DESTDIR ?=
DEB_VERSION ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/shunt/__init__.py)
DEB_ARCH := $(shell dpkg --print-architecture 2>/dev/null)
DEB := build/shunt_$(DEB_VERSION)_$(DEB_ARCH).deb
CLEAN_ROOT := build/packaging/root
HOST_ROOT := build/packaging/host
PACKAGE_SOURCES := $(shell find operator/shunt crates agent relay softswitch edge mixer packaging opensips-config sipp-scenarios p4 docs README.md LICENSE Cargo.lock -type f ! -path '*/__pycache__/*' 2>/dev/null)

.PHONY: manual install deb deb-test images oci-test

build/packaging/libraries/.ready: requirements.lock pyproject.toml | $(VENV)/.package
	@echo "==> the libraries to install"
	@packaging/libraries.sh $(BIN)/python build/packaging/libraries

build/packaging/manual/shunt.1: packaging/manual.py packaging/manual.yaml $(wildcard operator/shunt/cli/*.py operator/shunt/config/*.py) | $(VENV)/.package
	@$(BIN)/python packaging/manual.py $(@D)

build/packaging/completion/shunt.%: $(wildcard operator/shunt/cli/*.py) | $(VENV)/.package
	@mkdir -p $(@D)
	@_SHUNT_COMPLETE=$*_source $(BIN)/shunt > $@

COMPLETION := build/packaging/completion/shunt.bash build/packaging/completion/shunt.zsh

## make manual     renew docs/reference.md, which has the same source as the manual pages
manual: build/packaging/manual/shunt.1
	@$(BIN)/python packaging/manual.py --docs .

## make install    into PREFIX (default /usr/local), units and configuration too; DESTDIR puts it all below another root
install: daemons build/packaging/libraries/.ready build/packaging/manual/shunt.1 $(COMPLETION)
	@packaging/install.sh "$(DESTDIR)" "$(PREFIX)" $(PYTHON)

# Of the commit that --version names, and of nothing else that may lie here.
install deb deb-test images oci-test: export SHUNT_COMMIT := $(shell git describe --always --dirty --abbrev=12 2>/dev/null)

## make deb        a Debian package in build/
deb: $(DEB)

$(DEB): $(PACKAGE_SOURCES) build/packaging/libraries/.ready build/packaging/manual/shunt.1 $(COMPLETION) | daemons
	@packaging/deb.sh $@ $(DEB_VERSION) $(DEB_ARCH) $(PYTHON)

# For another base image, or options of the builder: OCI_OPTIONS="--build-arg BASE=… --isolation chroot"
OCI_OPTIONS ?=

## make images     an OCI image of each daemon, from the package (buildah or podman)
images: $(DEB)
	@packaging/oci/images.sh $(DEB) $(DEB_VERSION) $(OCI_OPTIONS)

# The clean root is as debootstrap leaves it, with what the package depends on, and systemd to boot it.
$(CLEAN_ROOT)/.ready: packaging/packaging.mk
	@.ci/debian-packages debootstrap
	@echo "==> a clean Debian 12"
	@rm -rf $(CLEAN_ROOT) && mkdir -p $(@D:/root=)
	@debootstrap --variant=minbase --include=python3,libelf1,zlib1g,libssl3,systemd,iproute2 bookworm $(CLEAN_ROOT) > build/packaging/debootstrap.log || { tail -5 build/packaging/debootstrap.log; exit 1; }
	@rm -rf $(CLEAN_ROOT)/var/cache/apt/archives/*.deb $(CLEAN_ROOT)/var/lib/apt/lists/*
	@touch $@

# The clean root with what a reader of the start pages has before Shunt; ethtool is what the package recommends.
$(HOST_ROOT)/.ready: $(CLEAN_ROOT)/.ready
	@echo "==> Kamailio and rtpengine on it"
	@rm -rf $(HOST_ROOT) && cp -a --reflink=auto $(CLEAN_ROOT) $(HOST_ROOT) && rm $(HOST_ROOT)/.ready
	@unshare --mount sh -ec 'mount --make-rprivate /; mount -t proc proc $(HOST_ROOT)/proc; export DEBIAN_FRONTEND=noninteractive; \
	  chroot $(HOST_ROOT) apt-get update --quiet=2; chroot $(HOST_ROOT) apt-get install --yes --quiet --no-install-recommends kamailio rtpengine-daemon ethtool' \
	  > build/packaging/host.log 2>&1 || { tail -5 build/packaging/host.log; exit 1; }
	@rm -rf $(HOST_ROOT)/var/cache/apt/archives/*.deb
	@touch $@

## make deb-test   build the package, install, run, upgrade and purge it in a clean Debian 12 (debootstrap; root)
deb-test: setup-all $(DEB)
	@if packaging/may-boot; then $(MAKE) --no-print-directory $(HOST_ROOT)/.ready; fi
	@DEB_TEST=1 $(BIN)/python -m pytest tests/packaging

## make oci-test   build the images on that Debian and run a call through their containers (buildah, podman; root)
oci-test: setup-all $(DEB)
	@if packaging/may-boot; then $(MAKE) --no-print-directory $(CLEAN_ROOT)/.ready; .ci/debian-packages buildah podman crun; fi
	@OCI_TEST=1 $(BIN)/python -m pytest tests/packaging/test_oci.py
