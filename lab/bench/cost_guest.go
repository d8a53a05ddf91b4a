package bench

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/test/bed/vm"
)

// CountOptions select the guest in which instructions are counted.
type CountOptions struct {
	// Kernel is one of vm.Kernels.
	Kernel string
	// Arch is Go's name of the guest's architecture. Default: this machine's.
	Arch string
	// Executable is scon for that architecture, statically linked, with scon-lab
	// beside it. Default: those of this process.
	Executable string
	// Rounds to measure; 0 for the experiment's default.
	Rounds int
	// Progress receives a report of every step.
	Progress Progress
}

// countTimeout bounds the run of a guest. A whole run takes some minutes on an idle
// machine.
const countTimeout = time.Hour

// noNetkit is the guest kernel that is older than netkit.
const noNetkit = "6.1"

// The guest's scon prints one line per step, one per sample as JSON, and the result
// as JSON.
const (
	stepMark   = "=== step "
	sampleMark = "=== sample "
	resultMark = "=== result\n"
)

// CountInGuest boots a guest that counts instructions and runs Cost or some of its
// steps there. As with Run, a result may come with an error: when ctx ends, it has
// the samples so far.
func CountInGuest(ctx context.Context, e Experiment, o CountOptions) (*Result, error) {
	if o.Rounds == 0 {
		o.Rounds = e.Rounds
	}
	if o.Kernel == noNetkit {
		if e = e.supported(kernel{flowtable: true, btf: true}); len(e.Modes) == 0 {
			return nil, fmt.Errorf("mode netkit: Linux %s does not support it", o.Kernel)
		}
	}
	return runInGuest(ctx, e, o, countCommand(e, o.Rounds))
}

// ChurnInGuest does so with Churn: a second is a billion instructions of the only CPU.
func ChurnInGuest(ctx context.Context, e Experiment, c ChurnOptions, o CountOptions) (*Result, error) {
	if o.Rounds == 0 {
		o.Rounds = e.Rounds
	}
	return runInGuest(ctx, e, o, fmt.Sprintf("/opt/scon-lab bench churn --counting --rounds %d --modes %s --rules %d --changes %d --connections %d --duration %v\n",
		o.Rounds, strings.Join(e.modeNames(), ","), c.Rules, c.Changes, c.Connections, c.Duration))
}

// modeNames returns the names of the modes.
func (e Experiment) modeNames() (names []string) {
	for _, m := range e.Modes {
		names = append(names, m.Name)
	}
	return names
}

// runInGuest boots a guest that counts instructions and has it run a command.
func runInGuest(ctx context.Context, e Experiment, o CountOptions, command string) (*Result, error) {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	files, err := o.files()
	if err != nil {
		return nil, err
	}
	started := time.Now()
	guest := &guestReader{experiment: e, rounds: o.Rounds, progress: o.Progress}
	o.Progress.Step(0, 1, "boot Linux "+o.Kernel)
	defer o.Progress.Done()
	r, err := vm.Run(ctx, vm.Options{
		Kernel: o.Kernel, Arch: o.Arch, Icount: true, Memory: 1536, Timeout: countTimeout,
		Files:   files,
		Command: command,
		Console: guest,
	})
	if err != nil {
		return guest.interrupted(started), err
	}
	said, text, found := strings.Cut(r.Output, resultMark)
	if !found {
		return guest.interrupted(started), fmt.Errorf("the guest printed no result: %s", withoutMarks(said))
	}
	text, _, _ = strings.Cut(text, "\n") // the errors that follow are in the result, too
	result, err := parseResult([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("read the guest's result: %w", err)
	}
	result.took(started) // the guest's clock counts instructions, not time
	if n := len(result.Errors); n > 0 {
		err = fmt.Errorf("%d errors; the first: %s", n, result.Errors[0])
	}
	if r.Complaints != "" {
		err = errors.Join(err, errors.New("the guest's kernel logged: "+r.Complaints))
	}
	return result, err
}

// withoutMarks returns the guest's output without the lines that guestReader
// parses.
func withoutMarks(said string) string {
	var rest strings.Builder
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, stepMark) && !strings.HasPrefix(line, sampleMark) {
			rest.WriteString(line)
		}
	}
	return strings.TrimSpace(rest.String())
}

// countCommand returns the command that the guest runs. Asynchronous preemption is
// off, since its signals cost instructions.
func countCommand(e Experiment, rounds int) string {
	var steps []string
	for _, s := range e.Steps {
		steps = append(steps, s.Name)
	}
	family, path, modules := 4, "", ""
	if e.IPv6 {
		family = 6
	}
	if e.Overlay {
		path = " --overlay"
	}
	if e.Uplink != "" {
		path = " --uplink " + e.Uplink
	}
	if e.isOfHost() {
		path = " --host"
	}
	if e.Path != nil {
		path, modules = " --between "+e.Path.Name, "modprobe br_netfilter\n"
	}
	return modules + fmt.Sprintf("GODEBUG=asyncpreemptoff=1 /opt/scon-lab bench count --rounds %d --family %d%s --modes %s --steps %s\n",
		rounds, family, path, strings.Join(e.modeNames(), ","), strings.Join(steps, ","))
}

// files returns the files to put into the guest: scon and scon-lab.
func (o CountOptions) files() (map[string]string, error) {
	scon, lab := o.Executable, "/proc/self/exe"
	if scon == "" {
		var err error
		if scon, err = programs.Find("scon"); err != nil {
			return nil, err
		}
	} else {
		lab = filepath.Join(filepath.Dir(scon), "scon-lab")
	}
	for _, path := range []string{scon, lab} {
		if err := runsAlone(path, o.Arch); err != nil {
			return nil, err
		}
	}
	return map[string]string{"/opt/scon": scon, "/opt/scon-lab": lab}, nil
}

// runsAlone returns an error if the executable cannot run in a guest of that
// architecture.
func runsAlone(path, arch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("inspect scon for the guest: %w", err)
	}
	defer f.Close()
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if f.Machine != machine {
		return fmt.Errorf("scon for the guest is for %v, not %s: build it with GOARCH=%[2]s and name it with --executable", f.Machine, arch)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("scon for the guest needs shared libraries, which the guest lacks: build it with CGO_ENABLED=0, as make does")
	}
	return nil
}

// guestReader parses a guest's output: it reports the progress and keeps the
// samples.
type guestReader struct {
	experiment Experiment
	rounds     int
	progress   Progress
	line       []byte
	result     *Result // nil until the first sample
}

func (r *guestReader) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' {
			r.line = append(r.line, c)
			continue
		}
		if step, ok := bytes.CutPrefix(r.line, []byte(stepMark)); ok {
			r.reportStep(strings.TrimSpace(string(step)))
		}
		if sample, ok := bytes.CutPrefix(r.line, []byte(sampleMark)); ok {
			r.keep(sample)
		}
		r.line = r.line[:0]
	}
	return len(b), nil
}

func (r *guestReader) reportStep(step string) {
	var done, total int
	if n, _ := fmt.Sscanf(step, "%d %d", &done, &total); n < 2 || total < 1 || done < 0 || done > total {
		return
	}
	fields := strings.SplitN(step, " ", 3)
	r.progress.Step(done, total, fields[len(fields)-1])
}

func (r *guestReader) keep(line []byte) {
	var s guestSample
	if json.Unmarshal(line, &s) != nil {
		return // the guest ended within the line
	}
	if r.result == nil {
		r.result = newResult(r.experiment, r.rounds)
		r.result.Kernel, r.result.Machine = s.Kernel, s.Machine
	}
	r.result.add(s.Sample)
}

// interrupted returns the result of a guest that ended early, or nil if there is no
// sample.
func (r *guestReader) interrupted(started time.Time) *Result {
	if r.result != nil {
		r.result.Interrupted = true
		r.result.took(started)
		r.result.summarize()
	}
	return r.result
}

// guestSample is a sample with the guest's kernel and machine.
type guestSample struct {
	Kernel, Machine string
	Sample          Sample
}

// GuestOptions returns options with which Count writes the lines that CountInGuest
// reads.
func GuestOptions(rounds int, w io.Writer) Options {
	return Options{Rounds: rounds, Progress: guestProgress{w}, Taken: func(r *Result, s Sample) {
		if line, err := json.Marshal(guestSample{r.Kernel, r.Machine, s}); err == nil {
			fmt.Fprintf(w, "%s%s\n", sampleMark, line)
		}
	}}
}

type guestProgress struct{ w io.Writer }

func (p guestProgress) Step(done, total int, next string) {
	fmt.Fprintf(p.w, "%s%d %d %s\n", stepMark, done, total, next)
}

func (guestProgress) Done() {}

// WriteGuestResult writes the result in the form that CountInGuest reads.
func (r *Result) WriteGuestResult(w io.Writer) error {
	if _, err := io.WriteString(w, "\n"+resultMark); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(r)
}
