package fresh

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tree is a copy of what make needs, and a user's: only the mounts of its commands have
// the user owner. Programs that would fetch, build or install are stubs, which write down
// how they are called.
type tree struct {
	t   *testing.T
	dir string // scon: the sources; home: the owner's; stubs: first in PATH
}

// stubs are the texts of the programs. All of them make the file that -o names.
var stubs = map[string]string{
	"go": `case "$*" in
"env GOVERSION") echo "go${HAS:-1.26.8}" ;;
"env GOROOT") echo "$STUBS/goroot" ;;
"env GOOS") echo linux ;;
"env GOARCH") echo amd64 ;;
"env GOMODCACHE") echo "${GOMODCACHE:-$HOME/go/pkg/mod}" ;;
"env GOCACHE") echo "${GOCACHE:-$HOME/.cache/go-build}" ;;
"env GOPROXY") echo "${GOPROXY:-https://written.example}" ;;
"env "*) printenv "$2" || echo ;;
"mod download golang.org/toolchain"*)
	dir=$HOME/go/pkg/mod/$3 && mkdir -p "$dir/bin" "$dir/pkg/tool/linux_amd64"
	touch "$dir/bin/go" "$dir/bin/gofmt" "$dir/pkg/tool/linux_amd64/link" ;;
run*) mkdir -p bin/man && touch bin/man/scon.8 bin/man/scon.yaml.5 ;;
esac`,
	"cc":         `case "$*" in *-static*) [ -z "${NO_STATIC:-}" ] ;; *-E*) [ -z "${NO_OPENSSL:-}" ] ;; esac || exit 1`,
	"sudo":       `printf '%s\n' "$@" >"$STUBS/sudo.args"`,
	"ar":         `: >"$2"`,
	"dpkg-query": "", "objcopy": "", "goroot/bin/gofmt": "",
}

func newTree(t *testing.T) *tree {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("missing: root, for another user's files")
	}
	dir, err := os.MkdirTemp("", "scon-tree")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &tree{t: t, dir: dir}
	for name, text := range stubs {
		m.write("stubs/"+name, `echo "`+name+` $(id -u) HOME=$HOME GOPROXY=${GOPROXY:-} GOCACHE=${GOCACHE:-} GOMODCACHE=${GOMODCACHE:-}: $*" >>"$STUBS/log"
out=; for arg; do [ "$out" != -o ] || { mkdir -p "${arg%/*}" && : >"$arg"; }; out=$arg; done
`+text)
	}
	m.write("stubs/log", "")
	out, err := exec.Command("sh", "-euc", `chmod 755 "$0"; chmod 666 "$0/stubs/log"; chmod 777 "$0/stubs"
		mkdir "$0/scon" "$0/home"
		cd ../.. && cp --parents -r Makefile VERSION go.mod scripts libsconpipe examples cmd/scon-cni cmd/scon-oci internal/startup/client internal/pipe/copier/cuda \
			packaging test/go.mod lab/go.mod lab/topology/schema.json "$0/scon"
		cp /etc/passwd /etc/group "$0"
		echo "owner:x:54321:54321::$0/home:/bin/sh" >>"$0/passwd"
		echo owner:x:54321: >>"$0/group"`, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("copy the sources: %v: %s", err, out)
	}
	for _, script := range []string{"check-generated", "clang14", "check-layers"} {
		m.write("scon/scripts/"+script+".sh", "")
	}
	return m
}

// write writes a shell script.
func (m *tree) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// run has a user run a command in the sources, which are the owner's. The environment has
// only what is given, as under sudo. The output is that of both.
func (m *tree) run(user string, env []string, command ...string) (string, error) {
	m.t.Helper()
	const enter = `dir=$1 user=$2; shift 2
		chown -R 54321:54321 "$dir/scon" "$dir/home"
		mount --bind "$dir/passwd" /etc/passwd; mount --bind "$dir/group" /etc/group
		[ ! -e /usr/local/go ] || mount -t tmpfs tmpfs /usr/local/go # make looks there, too
		mount -t tmpfs tmpfs /usr/include
		cd "$dir/scon"
		exec setpriv --reuid "$user" --regid "$user" --init-groups env -i \
			"PATH=$dir/stubs:/usr/sbin:/usr/bin:/sbin:/bin" "HOME=$(getent passwd "$user" | cut -d: -f6)" "STUBS=$dir/stubs" "$@"`
	args := append([]string{"--mount", "sh", "-euc", enter, "-", m.dir, user}, env...)
	out, err := exec.Command("unshare", append(args, command...)...).CombinedOutput()
	return string(out), err
}

// must is run, of a command that succeeds.
func (m *tree) must(user string, env []string, command ...string) string {
	m.t.Helper()
	out, err := m.run(user, env, command...)
	if err != nil {
		m.t.Fatalf("%s as %s: %v\n%s", command, user, err, out)
	}
	return out
}

// calls returns the calls of the stubs since the last time.
func (m *tree) calls() []string {
	m.t.Helper()
	log := filepath.Join(m.dir, "stubs/log")
	text, err := os.ReadFile(log)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.Truncate(log, 0); err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// find returns the calls that match.
func (m *tree) find(calls []string, pattern string) (found []string) {
	m.t.Helper()
	for _, call := range calls {
		if regexp.MustCompile(pattern).MatchString(call) {
			found = append(found, call)
		}
	}
	if found == nil {
		m.t.Errorf("no call is %q, of:\n%s", pattern, strings.Join(calls, "\n"))
	}
	return found
}

// ownersOnly fails if a file of the sources or the home is another's.
func (m *tree) ownersOnly() {
	m.t.Helper()
	out, err := exec.Command("find", m.dir+"/scon", m.dir+"/home", "!", "-uid", "54321").CombinedOutput()
	if err != nil || len(out) > 0 {
		m.t.Errorf("%v; files that are not the owner's:\n%s", err, out)
	}
}

// A user's command goes on by sudo, with the variables of make's command line as they
// were, and what says where Go fetches from. Root has caches of its own, and fetches what
// the owner has from the owner's.
func TestAsRootBySudo(t *testing.T) {
	m := newTree(t)
	out := m.must("owner", []string{"GOPROXY=https://proxy.example", "GOCACHE=/fast", "https_proxy=http://relay.example"},
		"make", "test-fresh", "FRESH=-a -b='c d'", "V=1")
	if !strings.Contains(out, "sudo make test-fresh") {
		t.Errorf("it does not say the command: %s", out)
	}
	args, err := os.ReadFile(m.dir + "/stubs/sudo.args")
	if err != nil {
		t.Fatal(err)
	}
	m.calls()
	m.write("scon/scripts/install-deps.sh", "")
	m.must("root", nil, strings.Split(strings.TrimSuffix(string(args), "\n"), "\n")...)
	calls := m.calls()
	modules := m.dir + "/home/go/pkg/mod"
	for _, call := range m.find(calls, "^go 0 .* test ") {
		want := fmt.Sprintf("go 0 HOME=/root GOPROXY=file://%s/cache/download,https://proxy.example GOCACHE= GOMODCACHE=: ", modules)
		if !strings.HasPrefix(call, want) || !strings.HasSuffix(call, "-full -a -b=c d") {
			t.Errorf("root calls Go by %s\nwant %s... -full -a -b=c d", call, want)
		}
	}
	for _, call := range m.find(calls, "^go 54321 ") {
		if !strings.Contains(call, " GOCACHE=/fast GOMODCACHE="+modules+": ") && !strings.Contains(call, ": env ") {
			t.Errorf("the owner has another cache than before: %s", call)
		}
	}
	if !strings.Contains(string(args), "\nhttps_proxy=http://relay.example\n") {
		t.Errorf("the proxy is not kept: %s", args)
	}
	m.ownersOnly()
}

// Under sudo, the owner builds; only tests are root's.
func TestSudoMake(t *testing.T) {
	m := newTree(t)
	m.write("scon/scripts/install-deps.sh", "")
	elsewhere := t.TempDir() // root's
	m.must("root", nil, "make", "scon", "SCON="+elsewhere+"/scon")
	m.must("root", nil, "make", "lab", "BIN="+elsewhere)
	m.calls()
	for _, command := range [][]string{
		{"make", "test"},
		{"make", "lab", "startup", "examples"},
		{"make", "demo"},
		{"sh", "-c", `echo >>libsconpipe/src/api.c && make install "DESTDIR=$(mktemp -d "$STUBS/XXXXXX")"`},
	} {
		m.write("scon/scripts/demo-docker.sh", "")
		m.write("scon/bin/scon", "")
		out := m.must("root", []string{"SUDO_UID=54321"}, command...)
		m.ownersOnly()
		for _, call := range m.find(m.calls(), "^(go|cc) ") {
			if regexp.MustCompile("^(go|cc) 0 .*( -o |: (build|run|mod) )").MatchString(call) {
				t.Errorf("%s: root calls %s\n%s", command, call, out)
			}
		}
	}
}

// A release by root writes logs, results and dist/ as the owner of the sources.
func TestRelease(t *testing.T) {
	m := newTree(t)
	m.write("stubs/make", `echo "make $(id -u): $*" >>"$STUBS/log"
case "$1" in
test-kernels) echo "--- PASS: TestExpress/6.12 (12.34s)" ;;
packages) scripts/as-owner.sh sh -c 'cd dist && touch a.deb a.rpm a.tar.gz a.tgz a-image.tar a.cdx.json' ;;
esac`)
	m.must("root", nil, "sh", "-euc", `mkdir docs
		echo "## [1.2.0] - 2026-02-03" >CHANGELOG.md; echo 1.2.0 >VERSION; printf 'bin\ndist\n' >.gitignore
		sed -i 's/^version: .*/version: 1.2.0/; s/^appVersion: .*/appVersion: "1.2.0"/' packaging/helm/scon/Chart.yaml
		printf '<!-- results -->\n<!-- end of results -->\n' >docs/kernels.md`)
	m.must("owner", nil, "sh", "-euc", `git config --global user.name o; git config --global user.email o@o.example
		git init --quiet; git add --all; git commit --quiet --message all`)
	m.calls()
	m.must("root", nil, "scripts/release.sh", "1.2.0")
	calls := m.calls()
	if n := len(m.find(calls, "^make 0: ")); n != 8 {
		t.Errorf("make has run %d times, of seven suites and the packages:\n%s", n, strings.Join(calls, "\n"))
	}
	m.find(calls, "^go 54321 .* run .*helm package ")
	m.ownersOnly()
	if out := m.must("owner", nil, "sh", "-c", "git status --porcelain; git describe; cat docs/kernels.md dist/SHA256SUMS"); !strings.HasPrefix(out, "v1.2.0\n") ||
		!strings.Contains(out, "| express | 12 s |") || !strings.Contains(out, "  a-image.tar") {
		t.Errorf("the release is:\n%s", out)
	}
	m.must("root", nil, "scripts/release.sh", "1.2.0") // goes on where it was: nothing but the packages
	if n := len(m.find(m.calls(), "^make 0: ")); n != 1 {
		t.Errorf("once more, make has run %d times", n)
	}
	m.ownersOnly()
}

// The image's archive is the owner's, although podman is root's.
func TestImage(t *testing.T) {
	m := newTree(t)
	for _, name := range []string{"aarch64-linux-gnu-gcc", "x86_64-linux-gnu-gcc"} {
		m.write("stubs/"+name, stubs["cc"]+`
out=; for arg; do [ "$out" != -o ] || : >"$arg"; out=$arg; done`)
	}
	m.write("stubs/podman", `case "$*" in *oci-archive:*) for arg; do :; done; arg=${arg#oci-archive:}; : >"${arg%%:*}" ;; esac`)
	m.write("scon/scripts/install-deps.sh", "")
	m.must("owner", nil, "sh", "-euc", `echo bin >.gitignore; echo dist >>.gitignore; git config --global user.name o; git config --global user.email o@o.example
		git init --quiet; git add --all; git commit --quiet --message all`)
	m.must("root", nil, "make", "image")
	if out := m.must("owner", nil, "sh", "-c", "ls dist"); !strings.HasSuffix(out, "-image.tar\n") {
		t.Errorf("dist has %s", out)
	}
	m.ownersOnly()
}

// Where the owner is no user of the machine, or not another one, nobody else's rights are taken.
func TestAsOwner(t *testing.T) {
	m := newTree(t)
	if out := m.must("root", nil, "scripts/as-owner.sh", "sh", "-c", `echo "$(id -u) $(id -g) $HOME $USER"`); out != "54321 54321 "+m.dir+"/home owner\n" {
		t.Errorf("as the owner: %s", out)
	}
	if _, err := m.run("root", nil, "scripts/as-owner.sh", "sh", "-c", "exit 7"); err == nil || err.Error() != "exit status 7" {
		t.Errorf("its exit status: %v, want 7", err)
	}
	if out := m.must("owner", nil, "scripts/as-owner.sh", "id", "-u"); out != "54321\n" {
		t.Errorf("the owner runs it as %s", out)
	}
	for _, owner := range []string{"root", "54320"} {
		if out := m.must("root", nil, "sh", "-c", "chown "+owner+" scripts && scripts/as-owner.sh id -u"); out != "0\n" {
			t.Errorf("root runs it, of sources of %s, as %s", owner, out)
		}
	}
}

// What cannot be built is left out by name, and the rest is built, without root.
func TestBuild(t *testing.T) {
	m := newTree(t)
	for _, c := range []struct {
		name        string
		env         []string
		built, left string // files in bin, and what stderr names
	}{
		{"all", nil, "libsconpipe.so.0 scon scon-cni scon-lab scon-oci scon-pipe-chain scon-pipe-load", ""},
		{"no archive of the C library", []string{"NO_STATIC=1"}, "libsconpipe.so.0 scon scon-lab scon-pipe-chain scon-pipe-load", "scon-cni and scon-oci"},
		{"no OpenSSL", []string{"NO_OPENSSL=1"}, "libsconpipe.so.0 scon scon-cni scon-lab scon-oci scon-pipe-load", "scon-pipe-chain, since OpenSSL"},
		{"no compiler", []string{"CC=no-such-compiler"}, "scon scon-lab", "no C compiler"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &tree{t, m.dir}
			m.must("root", nil, "rm", "-rf", "bin")
			m.write("stubs/sudo", "echo owner is not in the sudoers file >&2\nexit 1")
			out := m.must("owner", c.env, "make", "build")
			if !strings.Contains(out, "to install them: sudo scripts/install-deps.sh build") || !strings.Contains(out, "building without them") {
				t.Errorf("it does not say what is missing, and how to install it: %s", out)
			}
			if c.left == "" && strings.Contains(out, "left out: s") || !strings.Contains(out, c.left) {
				t.Errorf("left out: want %q in %s", c.left, out)
			}
			for _, name := range strings.Fields("libsconpipe.so.0 scon scon-cni scon-lab scon-oci scon-pipe-chain scon-pipe-load") {
				_, err := os.Stat(filepath.Join(m.dir, "scon/bin", name))
				if want := strings.Contains(" "+c.built+" ", " "+name+" "); want != (err == nil) {
					t.Errorf("%s: built %v, want %v", name, err == nil, want)
				}
			}
		})
	}
	if _, err := os.Stat("/usr/bin/go"); err == nil {
		return // it cannot be hidden
	}
	if out, err := m.run("owner", []string{"PATH=/usr/bin:/bin"}, "make", "build"); err == nil || !strings.Contains(out, "no Go: install golang-go") {
		t.Errorf("without Go: %v: %s", err, out)
	}
}

// A Go that cannot fetch another one has the one of go.mod fetched, once; others fetch it themselves.
func TestToolchain(t *testing.T) {
	m := newTree(t)
	for _, has := range []string{"1.21.0", "1.24.4", "1.26.8"} {
		if out := m.must("owner", []string{"HAS=" + has}, "scripts/toolchain.sh"); out != "" {
			t.Errorf("with Go %s: %s", has, out)
		}
	}
	m.calls()
	for _, has := range []string{"1.19.8", "1.20", "1.19.8-X:boringcrypto"} {
		out := m.must("owner", []string{"HAS=" + has}, "sh", "-c", "scripts/toolchain.sh 2>/dev/null")
		dir := strings.TrimSuffix(strings.TrimSpace(out), ":")
		if info, err := os.Stat(dir + "/go"); err != nil || info.Mode()&0o111 != 0o111 {
			t.Errorf("with Go %s: %q, %v: not executable", has, out, err)
		}
	}
	if n := len(m.find(m.calls(), "mod download golang.org/toolchain@v0.0.1-go[0-9.]*.linux-amd64$")); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}
