package datapath_test

import (
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A grace period is over only after the programs that ran when it began.
func TestGrace(t *testing.T) {
	g, err := datapath.NewGrace()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	state, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	const runs, ended = 1, 2
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R6, state.FD(), 0),
		asm.StoreImm(asm.R6, 0, runs, asm.Word),
		asm.Mov.Imm(asm.R7, 0),
		asm.FnKtimeGetNs.Call().WithSymbol("loop"),
		asm.FnKtimeGetNs.Call(), asm.FnKtimeGetNs.Call(), asm.FnKtimeGetNs.Call(), asm.FnKtimeGetNs.Call(),
		asm.Add.Imm(asm.R7, 1),
		asm.JLT.Imm(asm.R7, 100_000, "loop"), // some ten milliseconds
		asm.StoreImm(asm.R6, 0, ended, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	is := func() (value uint32) {
		if err := state.Lookup(uint32(0), &value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	met := 0
	for range 20 {
		failed := make(chan error, 1)
		go func() {
			_, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
			failed <- err
		}()
		for is() != runs && len(failed) == 0 {
		}
		until := g.Next()
		met += int(is() & runs)
		if over := g.Over(); over >= until {
			t.Fatalf("grace period %d was over before it could begin", over)
		}
		for g.Over() < until {
		}
		if is() == runs {
			t.Fatal("the program runs after the grace period")
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		if err := state.Put(uint32(0), uint32(0)); err != nil {
			t.Fatal(err)
		}
	}
	if met == 0 && runtime.NumCPU() > 1 { // the only CPU runs the program or the test
		t.Error("no program ran when a grace period began")
	}
}
