package bpfload_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// TestVerifierLog holds that the whole log is written when it is asked for, and
// only then.
func TestVerifierLog(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test loads a BPF program: run it as root (sudo make test)")
	}
	for _, wanted := range []string{"", "1"} {
		t.Run(fmt.Sprintf("%q", wanted), func(t *testing.T) {
			t.Setenv(bpfload.LogVariable, wanted)
			log := stderr(t, func() {
				var objs struct {
					Bad *ebpf.Program `ebpf:"bad"`
				}
				err := bpfload.LoadAndAssign(&ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"bad": {
					Type: ebpf.SchedCLS, License: "GPL",
					Instructions: asm.Instructions{asm.Mov.Reg(asm.R0, asm.R5), asm.Return()},
				}}}, &objs, nil)
				var refused *ebpf.VerifierError
				if !errors.As(err, &refused) {
					t.Errorf("error is %v, want the verifier's", err)
				}
			})
			if got := strings.Contains(log, "R5 !read_ok"); got != (wanted != "") {
				t.Errorf("the log on stderr is %q", log)
			}
		})
	}
}

// stderr returns what fn writes there.
func stderr(t *testing.T, fn func()) string {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	was := os.Stderr
	os.Stderr = w
	fn()
	os.Stderr = was
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An object that is damaged, or was not packed, is refused.
func TestReadRefuses(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for what, b := range map[string][]byte{"nothing": nil, "no gzip": []byte("\x7fELF"), "a part": packed.Bytes()[:packed.Len()-9], "no object": packed.Bytes()} {
		if _, err := bpfload.Read(b); err == nil {
			t.Errorf("%s is read", what)
		}
	}
}
