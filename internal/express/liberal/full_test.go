package liberal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Where others take every place in conntrack's table, restore loses one connection at most, and
// says how many it has left as they were.
func TestRestoreWhileFull(t *testing.T) {
	const mostPlaces, some = 1 << 19, 3000
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	places, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if places > mostPlaces {
		t.Skipf("missing: a table of conntrack that is soon full (nf_conntrack_max is %d)", places)
	}
	nstest.Do(t, nstest.New(t), func() {
		w := work{progress: func(int, int) {}}
		if w.ct, err = conntrack.OpenRenewer(); err != nil {
			t.Fatal(err)
		}
		defer w.ct.Close()
		fill := openFill(t)
		for n := range places / fill.batch {
			if _, err := fill.create(n*fill.batch, fill.batch); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.ct.DumpEntries(func(e conntrack.Entry) {
			if len(w.all) < some {
				w.all = append(w.all, &conn{Conn: Conn{Tuple: e.Orig, Outcome: Kept}, entry: e})
			}
		}); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var others sync.WaitGroup
		for i := range 2 {
			other := openFill(t)
			others.Go(func() {
				for n := (i + 1) * mostPlaces; ; n++ {
					select {
					case <-stop:
						return
					default:
						if _, err := other.create(n, 1); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		renewed, err := w.renew(slices.Clone(w.all))
		close(stop)
		others.Wait()
		if err != nil {
			t.Fatal(err)
		}
		lost, left := 0, 0
		for _, c := range w.all {
			switch _, err := w.ct.Entry(c.Tuple); {
			case c.Outcome == Lost:
				lost++
			case err != nil:
				t.Errorf("%+v: %v", c.Conn, err)
			case c.Reason != "":
				left++
			}
		}
		t.Logf("renewed %d, lost %d, left %d as they were", len(renewed), lost, left)
		if lost > 1 || len(renewed)+lost+left != some {
			t.Errorf("renewed %d of %d, lost %d, left %d as they were", len(renewed), some, lost, left)
		}
		for _, c := range w.all {
			if c.Outcome == Kept && c.Reason != "" && !strings.Contains(c.Reason, fmt.Sprintf(" %d ", left)) {
				t.Errorf("of %d that were left: %q", left, c.Reason)
			}
		}
	})
}

// fill creates entries of liberal connections.
type fill struct {
	commands *nlmsg.Commands
	batch    int
}

func openFill(t *testing.T) fill {
	t.Helper()
	commands, err := nlmsg.OpenCommands(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(commands.Close)
	return fill{commands, 128}
}

// create creates n entries from one on, as far as the table has room, and says how many.
func (f fill) create(from, n int) (created int, err error) {
	commands := make([]nlmsg.Command, n)
	for i := range commands {
		commands[i] = established(uint32(from + i))
	}
	refused, err := f.commands.Each(commands...)
	for _, r := range refused {
		if r == nil {
			created++
		} else if !errors.Is(r, unix.ENOMEM) {
			err = errors.Join(err, r)
		}
	}
	return created, err
}

// established creates the entry of a connection of TCP by its number.
func established(number uint32) nlmsg.Command {
	const (
		tupleOrig, tupleReply, status, protoInfo, timeout = 1, 2, 3, 4, 7
		seenReply, assured, confirmed                     = 1 << 1, 1 << 2, 1 << 3
		scaled, liberal                                   = 0x01, 0x08
	)
	client := binary.BigEndian.AppendUint32(nil, 10<<24+number)
	tuple := func(typ uint16, from, to []byte) []byte {
		port := []byte{0, 80}
		return nlmsg.Nested(typ,
			nlmsg.Nested(1, nlmsg.Attr(1, from), nlmsg.Attr(2, to)),
			nlmsg.Nested(2, nlmsg.Attr(1, []byte{unix.IPPROTO_TCP}), nlmsg.Attr(2, port), nlmsg.Attr(3, port)))
	}
	server, flags := []byte{192, 0, 2, 1}, []byte{scaled | liberal, 0xff}
	return nlmsg.Command{
		What: fmt.Sprintf("create number %d", number),
		Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Data: slices.Concat([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0},
			tuple(tupleOrig, client, server), tuple(tupleReply, server, client),
			nlmsg.Be32(status, seenReply|assured|confirmed), nlmsg.Be32(timeout, 3600),
			nlmsg.Nested(protoInfo, nlmsg.Nested(1,
				nlmsg.Attr(1, []byte{conntrack.TCPEstablished}), nlmsg.Attr(2, []byte{7}), nlmsg.Attr(3, []byte{7}),
				nlmsg.Attr(4, flags), nlmsg.Attr(5, flags)))),
	}
}
