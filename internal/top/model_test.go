package top

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/live"
)

// daemon counts up with each question.
type daemon struct {
	n          uint64
	containers []string
	addr       string // of each container; "": 172.17.0.2
	err        error
}

func (d *daemon) Status() (api.Status, error) {
	d.n++
	s := api.Status{State: api.StateActive, PID: 7, Generation: uint32(d.n / 5)}
	for i, name := range d.containers {
		n := d.n * uint64(1000*(i+1))
		s.Containers = append(s.Containers, api.Container{
			Name: name, ID: fmt.Sprint("id", i), Dev: fmt.Sprint("veth", i), Bridge: "docker0", Entries: i,
			ExpressSent: api.Count{Packets: n, Bytes: 100 * n}, RegularPackets: d.n, Reasons: map[string]uint64{"no_entry": d.n},
		})
	}
	return s, d.err
}

func (d *daemon) Flows(string) ([]api.Flow, error) {
	var flows []api.Flow
	for i, name := range d.containers {
		flows = append(flows, api.Flow{
			Container: name, Proto: "tcp", Path: "wire", State: "express", AgeMS: int64(1000 * d.n), LeaseBound: "lease_max in the configuration",
			Orig:           api.Tuple{Src: cmp.Or(d.addr, "172.17.0.2"), Sport: uint16(4000 + i), Dst: "10.0.0.1", Dport: 80},
			ExpressPackets: [2]uint64{d.n * uint64(i+1), 0},
		})
	}
	return flows, d.err
}

func (d *daemon) Explain(subject string) (api.Explanation, error) {
	return api.Explanation{Subject: subject, Findings: []api.Finding{{Level: "ok", What: "it goes express"}}}, d.err
}

// bed is a view with a daemon, without a terminal and without time.
type bed struct {
	*Model
	t *testing.T
	d *daemon
}

func newBed(t *testing.T, containers ...string) *bed {
	d := &daemon{containers: containers}
	m, err := New(d, Options{Interval: time.Second, Explain: func(e api.Explanation, _ int) string {
		return e.Subject + ": " + e.Findings[0].What + strings.Repeat(" and so on", 20) + "\n"
	}})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{m, t, d}
	b.look()
	b.look()
	return b
}

// look takes a snapshot.
func (b *bed) look() { b.update(b.take()()) }

// press presses keys: names of keys, or single characters.
func (b *bed) press(keys ...string) {
	for _, name := range keys {
		if c := b.update(pressed(name)); c != nil {
			b.update(c())
		}
	}
}

// pressed is a key as input returns it.
func pressed(name string) key {
	switch {
	case name == "space":
		return key{name, " "}
	case len([]rune(name)) == 1:
		return key{name, name}
	default:
		return key{name, ""}
	}
}

func (b *bed) screen() string { return cli.Bare(strings.Join(b.lines(), "\n")) }

// want fails unless the screen has each text; one that begins with '!' it must not have.
func (b *bed) want(texts ...string) {
	b.t.Helper()
	screen := b.screen()
	for _, text := range texts {
		text, not := strings.CutPrefix(text, "!")
		if strings.Contains(screen, text) == not {
			b.t.Errorf("the screen has %q: %v; it is\n%s", text, not, screen)
		}
	}
}

func TestKeys(t *testing.T) {
	b := newBed(t, "web", "db", "cache")
	b.want("[containers 3]", "> cache", "connections 3", "no_entry", "by express")
	for range len(live.ContainerOrders) - 1 {
		b.press("s")
	}
	b.want("by name")
	b.press("r")
	b.want("by name, reversed")
	b.press("home")
	b.want("> web")
	b.press("down")
	b.want("> db")
	b.press("s", "r") // the cursor stays with its row
	b.want("> db", "by express")
	b.press("tab")
	b.want("[connections 3]", "172.17.0.2:4002->10.0.0.1:80")
	b.press("/", "w", "e", "x")
	b.want("filter: wex_", "Nothing matches the filter", "connections 0 of 3")
	b.press("backspace", "b", "enter")
	b.want("[connections 1 of 3]", "172.17.0.2:4000", "!172.17.0.2:4002", "filter: web  (esc clears)")
	b.press("/", "backspace", "backspace", "backspace", "n", "o", ":", "x")
	b.want(`there is no key "no"`, "[connections 0 of 3]") // as by "no"
	b.press("enter")                                       // it is no filter
	b.want("filter: no:x_")
	b.press("esc")
	b.want("[connections 3]")
	b.press("home", "enter")
	b.want("tcp:172.17.0.2:4002->10.0.0.1:80: it goes express", "esc back", "!CONTAINER")
	b.press("esc")
	b.want("[connections 3]")
	b.press("tab")
	b.want("[changes 0]", "Nothing has changed")
	for range 5 {
		b.look()
	}
	b.want("[changes 1]", "generation 0 -> 1")
	b.press("?")
	b.want("peer:10.0.0.1", "freeze")
	b.press("esc", "tab", "end", "c")
	b.want("[connections 1 of 3]", "filter: container:web")
	for _, name := range []string{"q", "ctrl+c"} {
		if c := b.update(pressed(name)); c == nil || c() != (quit{}) {
			t.Errorf("%s does not quit", name)
		}
	}
}

// A frozen view keeps what it shows; what follows has the rates of its own interval.
func TestFreeze(t *testing.T) {
	b := newBed(t, "web")
	b.press("space")
	b.d.containers = append(b.d.containers, "db")
	b.look()
	b.want("FROZEN", "[containers 1]", "!db")
	b.press("space")
	b.want("!FROZEN", "[containers 2]", "db")
}

// A daemon that does not answer leaves what was seen on the screen.
func TestNoAnswer(t *testing.T) {
	b := newBed(t, "web")
	b.d.err = errors.New("no daemon answers\x1b[31m")
	b.look()
	b.want("NO ANSWER: no daemon answers?[31m", "> web")
	b.press("enter")
	b.want("no explanation: no daemon answers")
	b.press("esc")
	b.d.err = nil
	b.look()
	b.want("!NO ANSWER", "> web")

	m, err := New(&daemon{err: errors.New("none")}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	fresh := &bed{m, t, nil}
	fresh.want("asking the daemon")
	fresh.look()
	fresh.want("none", "q quit")
	fresh.press("down", "enter", "s", "tab", "c")
	fresh.want("none")
}

// No line is wider than the terminal, and none too many, whatever its size. What comes from
// a container cannot leave its cell.
func TestSizes(t *testing.T) {
	names := []string{"web", strings.Repeat("long", 60), "\x1b[2J\x1b]0;title\a", "漢字容器", "a\u0301\u202ecombining", "new\nline", ""}
	b := newBed(t, names...)
	for _, page := range []string{"", "?", "enter"} {
		for range tables {
			for width := 1; width < 200; width += 7 {
				for _, height := range []int{1, 2, 5, 24, 60} {
					b.update(resized{width, height})
					if page != "" {
						b.press(page)
					}
					lines := b.lines()
					content := strings.Join(lines, "\n")
					if len(lines) > height {
						t.Fatalf("%dx%d: %d lines", width, height, len(lines))
					}
					for _, l := range lines {
						if w := cli.Cells(l); w > width {
							t.Fatalf("%dx%d: a line is %d wide: %q", width, height, w, l)
						}
					}
					for _, r := range cli.Bare(content) {
						if r < ' ' && r != '\n' || r == 0x202e {
							t.Fatalf("the screen has the control character %q", r)
						}
					}
					if strings.Contains(content, "[2J") && !strings.Contains(content, "?[2J") {
						t.Fatal("an escape sequence of a name is on the screen")
					}
					if page != "" {
						b.press("esc")
					}
				}
			}
			b.press("tab")
		}
	}
}

// At 80 columns what decides is there: names, rates, and why packets are regular.
func TestNarrow(t *testing.T) {
	b := newBed(t, "web-frontend-1", "db")
	b.want("web-frontend-1", "EXPRESS/s", "BYTES/s", "REGULAR/s", "SHARE", "WHY REGULAR", "no_entry")
	b.press("tab")
	b.want("172.17.0.2:4000->10.0.0.1:80", "web-frontend-1", "OUT/s", "BYTES/s", "wire")
}

// The longest connection is there at 80 columns, in two lines, and the cursor's row is on the
// screen with both.
func TestLongConnections(t *testing.T) {
	b := newBed(t, "web-frontend-1", "b", "c", "d", "e", "f", "g", "h", "i", "j")
	b.d.addr = "2001:db8:1111:2222:3333:4444:5555:6666"
	b.look()
	b.press("tab")
	b.want("[2001:db8:1111:2222:3333:4444:5555:6666]:4009->", "  10.0.0.1:80\n", "BYTES/s", "!…")
	for _, height := range []int{24, 11, 9} {
		b.update(resized{80, height})
		b.press("home")
		for i := range b.d.containers {
			lines := strings.Split(b.screen(), "\n")
			at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, mark) })
			if at < 0 || !strings.Contains(lines[at], fmt.Sprintf("]:%d->", 4009-i)) || strings.TrimSpace(lines[at+1]) != "10.0.0.1:80" {
				t.Fatalf("in %d lines: row %d is not there:\n%s", height, i, b.screen())
			}
			b.press("down")
		}
	}
}
