package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Subject is the argument of `scon explain`: a container, or a pattern that matches
// flows.
//
//	FLOW = [tcp: | udp:] END [-> END]
//	END  = ADDRESS [: PORT]
//
// One END matches either end of either tuple, so 172.17.0.2:43512 and 10.0.0.1:80 both
// match tcp:172.17.0.2:43512->10.0.0.1:80. Two are source and destination of one tuple,
// the original or the reply. An IPv6 address with a port is written in brackets. Any
// other word is a container's name or ID.
type Subject struct {
	Container string // the other fields are zero when set
	Proto     string // "tcp", "udp" or "" for both
	From, To  End    // To is zero for a pattern of one END
}

// End is one end of a tuple. The zero End matches every end.
type End struct {
	Addr netip.Addr
	Port uint16 // 0: every port
}

// ParseSubject parses this form. The error is a *SubjectError.
func ParseSubject(s string) (Subject, error) {
	sub, err := parseSubject(s)
	if err != nil {
		return Subject{}, &SubjectError{Subject: s, Err: err}
	}
	return sub, nil
}

func parseSubject(s string) (Subject, error) {
	var sub Subject
	rest := s
	for _, proto := range []string{"tcp", "udp"} {
		if r, ok := strings.CutPrefix(s, proto+":"); ok {
			sub.Proto, rest = proto, r
		}
	}
	from, to, pair := strings.Cut(rest, "->")
	var err error
	sub.From, err = parseEnd(from)
	if err != nil && sub.Proto == "" && !pair {
		return parseContainer(s)
	}
	if err == nil && pair {
		sub.To, err = parseEnd(to)
	}
	return sub, err
}

// parseContainer accepts the characters that container runtimes allow in names.
func parseContainer(s string) (Subject, error) {
	if s == "" {
		return Subject{}, errors.New("it is empty")
	}
	for _, r := range s {
		if r <= ' ' || r > '~' || strings.ContainsRune(`:<>"'`, r) {
			return Subject{}, fmt.Errorf("it is not an address and port, and a name cannot contain %q", r)
		}
	}
	return Subject{Container: s}, nil
}

func parseEnd(s string) (End, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return End{Addr: ap.Addr(), Port: ap.Port()}, nil
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return End{}, fmt.Errorf("%q is not an address with or without a port", s)
	}
	return End{Addr: addr}, nil
}

func (s Subject) String() string {
	if s.Container != "" {
		return s.Container
	}
	text := s.From.String()
	if s.Proto != "" {
		text = s.Proto + ":" + text
	}
	if s.To != (End{}) {
		text += "->" + s.To.String()
	}
	return text
}

func (e End) String() string {
	if e.Port == 0 {
		return e.Addr.String()
	}
	return netip.AddrPortFrom(e.Addr, e.Port).String()
}

// Match reports whether a flow matches the subject.
func (s Subject) Match(f Flow) bool {
	if s.Container != "" {
		return f.Container == s.Container
	}
	if s.Proto != "" && s.Proto != f.Proto {
		return false
	}
	return s.matchTuple(f.Orig) || s.matchTuple(f.Reply)
}

func (s Subject) matchTuple(t Tuple) bool {
	from := s.From.match(t.Src, t.Sport)
	if s.To == (End{}) {
		return from || s.From.match(t.Dst, t.Dport)
	}
	return from && s.To.match(t.Dst, t.Dport)
}

func (e End) match(addr string, port uint16) bool {
	return e.Addr.String() == addr && (e.Port == 0 || e.Port == port)
}

// String returns "" for the zero Tuple.
func (t Tuple) String() string {
	if t == (Tuple{}) {
		return ""
	}
	return join(t.Src, t.Sport) + "->" + join(t.Dst, t.Dport)
}

// Compare orders tuples by source, then by destination.
func (t Tuple) Compare(o Tuple) int {
	return cmp.Or(cmp.Compare(t.Src, o.Src), cmp.Compare(t.Sport, o.Sport),
		cmp.Compare(t.Dst, o.Dst), cmp.Compare(t.Dport, o.Dport))
}

func join(addr string, port uint16) string {
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	return addr + ":" + strconv.Itoa(int(port))
}
