package vm

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf/features"
)

// exits7 is a program of arm64 that exits with status 7: an ELF file of one segment.
func exits7() []byte {
	const base, header, segment = 0x10000, 64, 56
	code := []uint32{
		0xd28000e0, // mov x0, #7
		0xd2800ba8, // mov x8, #93: exit
		0xd4000001, // svc #0
	}
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 15: 0}
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)    // ET_EXEC
	b = le.AppendUint16(b, 0xb7) // EM_AARCH64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header+segment) // entry
	b = le.AppendUint64(b, header)              // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{header, segment, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable and executable
	for _, n := range []uint64{0, base, base, header + segment + 12, header + segment + 12, 0x10000} {
		b = le.AppendUint64(b, n)
	}
	for _, op := range code {
		b = le.AppendUint32(b, op)
	}
	return b
}

// A program of another architecture runs, and this machine still cannot run it.
func TestForeign(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("missing: a machine of another architecture than the program's")
	}
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	if version < 6<<16|7<<8 {
		t.Skipf("missing: a binfmt_misc of a user namespace (Linux 6.7); this is %d.%d", version>>16, version>>8&0xff)
	}
	program := filepath.Join(t.TempDir(), "exits7")
	if err := os.WriteFile(program, exits7(), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd, err := foreign(t.Context(), "arm64", "sh", "-c", program)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat("/proc/sys/fs/binfmt_misc/scon-arm64"); err == nil {
		t.Error("this machine itself runs such programs now")
	}
}

// What is missing is named.
func TestForeignMissing(t *testing.T) {
	want := "no emulator of s390x programs on " + runtime.GOARCH
	if _, err := foreign(t.Context(), "s390x", "true"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
