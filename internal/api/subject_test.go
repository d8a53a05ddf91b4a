package api_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

func end(addr string, port uint16) api.End {
	return api.End{Addr: netip.MustParseAddr(addr), Port: port}
}

func TestParseSubject(t *testing.T) {
	for s, want := range map[string]api.Subject{
		"web":               {Container: "web"},
		"k8s_app.1-x":       {Container: "k8s_app.1-x"},
		"4f2a9c0d":          {Container: "4f2a9c0d"},
		"172.17.0.2":        {From: end("172.17.0.2", 0)},
		"172.17.0.2:43512":  {From: end("172.17.0.2", 43512)},
		"tcp:172.17.0.2":    {Proto: "tcp", From: end("172.17.0.2", 0)},
		"udp:10.0.0.1:53":   {Proto: "udp", From: end("10.0.0.1", 53)},
		"[fd00::2]:443":     {From: end("fd00::2", 443)},
		"10.0.0.1->8.8.8.8": {From: end("10.0.0.1", 0), To: end("8.8.8.8", 0)},
		"tcp:172.17.0.2:43512->10.0.0.1:80": {
			Proto: "tcp", From: end("172.17.0.2", 43512), To: end("10.0.0.1", 80),
		},
	} {
		got, err := api.ParseSubject(s)
		if err != nil || got != want {
			t.Errorf("ParseSubject(%q) = %+v, %v; want %+v", s, got, err, want)
		}
		if got.String() != s {
			t.Errorf("%q is printed as %q", s, got)
		}
	}
}

func TestParseSubjectRefuses(t *testing.T) {
	for _, s := range []string{
		"", "tcp:", "tcp:web", "a b", "a:b", "10.0.0.1:80:90", "10.0.0.1:65536",
		"10.0.0.1->", "->10.0.0.1", "10.0.0.1->web", "10.0.0.1->10.0.0.2->10.0.0.3", "a\n",
	} {
		got, err := api.ParseSubject(s)
		var e *api.SubjectError
		if !errors.As(err, &e) || e.Subject != s {
			t.Errorf("ParseSubject(%q) = %+v, %v; want a SubjectError", s, got, err)
		}
	}
}

func TestSubjectMatch(t *testing.T) {
	// Masqueraded: the reply is addressed to the host.
	flow := api.Flow{
		Container: "web",
		Proto:     "tcp",
		Orig:      api.Tuple{Src: "172.17.0.2", Sport: 43512, Dst: "10.0.0.1", Dport: 80},
		Reply:     api.Tuple{Src: "10.0.0.1", Sport: 80, Dst: "192.168.1.5", Dport: 43512},
	}
	for s, want := range map[string]bool{
		"web":                               true,
		"db":                                false,
		"172.17.0.2":                        true,
		"172.17.0.3":                        false,
		"172.17.0.2:43512":                  true,
		"172.17.0.2:80":                     false,
		"10.0.0.1:80":                       true,
		"192.168.1.5:43512":                 true,
		"tcp:10.0.0.1:80":                   true,
		"udp:10.0.0.1:80":                   false,
		"tcp:172.17.0.2:43512->10.0.0.1:80": true,
		"10.0.0.1:80->192.168.1.5":          true,
		"10.0.0.1:80->172.17.0.2":           false,
		"172.17.0.2->192.168.1.5":           false,
	} {
		sub, err := api.ParseSubject(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := sub.Match(flow); got != want {
			t.Errorf("%q matches: %v, want %v", s, got, want)
		}
	}
}

// FuzzParseSubject checks that an accepted subject parses to the same value when printed.
func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"web", "tcp:172.17.0.2:43512->10.0.0.1:80", "[fe80::1%eth0]:1", "10.0.0.1:0", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sub, err := api.ParseSubject(s)
		if err != nil {
			return
		}
		again, err := api.ParseSubject(sub.String())
		if err != nil || again != sub {
			t.Errorf("%q reads as %+v, printed %q reads as %+v, %v", s, sub, sub, again, err)
		}
	})
}
