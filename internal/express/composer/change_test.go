package composer

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// asking is a change that concerns the connections that match.
type asking struct {
	questions int
	matches   func(rules.Conn) bool
}

func (a *asking) MayConcern(c rules.Conn) bool {
	a.questions++
	return a.matches(c)
}

func (a *asking) Concerns(c rules.Conn) bool { return a.MayConcern(c) }

// end is one of a candidate's addresses.
func (x candidate) end(i int) netip.Addr {
	conn := x.conn(kind{is4: true})
	return rules.Ends(&conn)[i].Addr()
}

// sharesAddr reports whether an address of a connection may be that of a candidate.
func sharesAddr(c rules.Conn, x candidate, end int) bool {
	known := 32
	if c.Shared != nil {
		known = int(c.Shared[end].Addr)
	}
	return netip.PrefixFrom(rules.Ends(&c.Conn)[end].Addr(), known).Contains(x.end(end))
}

// sharesPort is that of a port.
func sharesPort(c rules.Conn, x candidate, end int) bool {
	unknown := 0
	if c.Shared != nil {
		unknown = 16 - int(c.Shared[end].Port)
	}
	return (rules.Ends(&c.Conn)[end].Port()^x.ports[end])>>unknown == 0
}

// Those that a rule about an address or a port concerns are found, all and no others,
// by few questions.
func TestFindsConcerned(t *testing.T) {
	t.Parallel()
	const many, most = 8000, 100
	server := netip.MustParseAddrPort("198.51.100.1:443")
	host := netip.MustParseAddr("203.0.113.1")
	for name, ends := range map[string]func(i int, r *rand.Rand) (own, other netip.AddrPort){
		"clients": func(i int, r *rand.Rand) (own, other netip.AddrPort) {
			return netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), 80),
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), uint16(1024+r.IntN(60000)))
		},
		"ports": func(i int, _ *rand.Rand) (own, other netip.AddrPort) {
			return netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), uint16(20000+i)), server
		},
		"servers": func(i int, r *rand.Rand) (own, other netip.AddrPort) {
			return netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), uint16(1024+r.IntN(60000))),
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(r.IntN(250)), byte(i >> 8), byte(i)}), 443)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 1))
			table, _ := newTable(t, many)
			var all []candidate
			var of kind
			for i := range many {
				own, other := ends(i, r)
				conn := conntrack.Conn{
					Orig: conntrack.Tuple{Src: own, Dst: other}, Reply: conntrack.Tuple{Src: other, Dst: netip.AddrPortFrom(host, own.Port())},
				}
				e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				all, of = append(all, candidateOf(e.Ref(), table.Conn(e))), kindOf(e, conn)
			}
			one := all[r.IntN(many)]
			for what, matches := range map[string]func(rules.Conn) bool{
				"address": func(c rules.Conn) bool { return sharesAddr(c, one, 1) },
				"port":    func(c rules.Conn) bool { return sharesPort(c, one, 0) },
				"both":    func(c rules.Conn) bool { return sharesAddr(c, one, 1) && sharesPort(c, one, 0) },
			} {
				want := 0
				for _, x := range all {
					if matches(rules.Conn{Conn: x.conn(of)}) {
						want++
					}
				}
				if want > fewConcerned {
					continue // of one server, or one port
				}
				a := &asking{matches: matches}
				q := inquiry{Composer: &Composer{table: table}, change: a, kind: of, start: time.Now().Add(time.Hour), most: fewConcerned} // not late, however slow the machine is
				q.search(all, differences(all), new(rules.Conn))
				t.Logf("%s: %d questions", what, a.questions)
				if len(q.concerned) != want || q.everything != "" || a.questions > most {
					t.Errorf("%s: %d concerned, want %d, by %d questions %s", what, len(q.concerned), want, a.questions, q.everything)
				}
			}
		})
	}
}
