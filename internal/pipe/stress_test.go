package pipe_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Every byte of many connections arrives as it was sent: libsconpipe/test/stress.c. With
// SCON_LONG it runs for minutes, with other load, and with ThreadSanitizer.
func TestStress(t *testing.T) {
	t.Parallel()
	type run struct {
		name    string
		program func() (string, error)
		conns   int
		seconds int
		memory  int64
		load    bool
	}
	runs := []run{
		{"large", program, 6, 2, 1 << 30, false},
		{"small rings", program, 6, 1, 6 * 256 << 10 * 2, false},
	}
	if os.Getenv("SCON_LONG") != "" {
		runs = []run{
			{"large", program, 12, 60, 1 << 30, false},
			{"under load", program, 24, 60, 1 << 30, true},
			{"small rings", program, 12, 20, 12 * 256 << 10 * 2, true},
			{"threads", programOfThreads, 6, 30, 1 << 30, false},
		}
	}
	for _, engine := range engines(t) {
		for _, r := range runs {
			t.Run(engine.String()+"/"+r.name, func(t *testing.T) {
				_, socket := serve(t, func(o *pipe.Options) { o.MemoryLimit = r.memory })
				if r.load {
					burn(t)
				}
				path, err := r.program()
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(path, "stress")
				cmd.Env = []string{
					"SCON_PIPE_SOCKET=" + socket, "ENGINE=" + engine.String(), fmt.Sprintf("CONNS=%d", r.conns),
					"SECONDS=" + strconv.Itoa(r.seconds), "SEED=" + os.Getenv("SCON_SEED"),
				}
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := netns.Do(nstest.New(t), cmd.Start); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Errorf("%v\n%s", err, out.String())
				}
			})
		}
	}
}

// So do those that are paused again and again by changes of rules.
func TestStressThroughRechecks(t *testing.T) {
	t.Parallel()
	for _, name := range config.Default().Pipe.Engines {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, nil)
			cmd := command(t, socket, "stress", "ENGINE="+name, "CONNS=6", "SECONDS=2", "SEED="+os.Getenv("SCON_SEED"))
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := netns.Do(nstest.New(t), cmd.Start); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			for rounds := 0; ; rounds++ {
				select {
				case err := <-ended:
					if err != nil {
						t.Errorf("%v\n%s", err, out.String())
					}
					t.Logf("%d changes of rules; refused: %v", rounds, b.Status().Refused)
					return
				default:
					b.RecheckWithin(time.Minute).Wait()
				}
			}
		})
	}
}

// burn keeps all CPUs busy until the test ends.
func burn(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}
