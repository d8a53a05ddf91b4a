package bench

import (
	"strings"
	"testing"
)

func TestCheckRefusesTheWrongPath(t *testing.T) {
	long, short := Step{Name: "long"}, Step{Name: "short", FewExpress: true}
	reasons := map[string]uint64{"lease": 3, "too_long": 700}
	for _, c := range []struct {
		name string
		mode Mode
		step Step
		used reading
		want string // substring of the error, "" for none
	}{
		{"native past the bridge", Native, long, reading{uplink: 1000}, ""},
		{"native by the bridge", Native, long, reading{uplink: 1000, bridge: 1000}, "crossed the bridge"},
		{"container by the bridge", Container, long, reading{uplink: 1000, bridge: 1000}, ""},
		{"container past the bridge", Container, long, reading{uplink: 1000, bridge: 60}, "only 6.0 %"},
		{"express past the bridge", Express, long,
			reading{uplink: 1000, bridge: 60, express: 940, regular: 60}, ""},
		{"express by the bridge", Express, long,
			reading{uplink: 1000, bridge: 700, express: 300, regular: 700, reasons: reasons}, "reasons: too_long 700, lease 3"},
		{"express only for the daemon", Express, long,
			reading{uplink: 1000, bridge: 1000, express: 1000}, "100.0 % of the packets crossed the bridge"},
		{"express only for the bridge", Express, long,
			reading{uplink: 1000, express: 300, regular: 700}, "only 30.0 %"},
		{"no packet", Express, long, reading{}, "only 0.0 %"},
		{"express, short connections", Express, short, reading{uplink: 1000, bridge: 1000}, ""},
		{"short connections express", ExpressShort, short, reading{uplink: 1000, bridge: 400, express: 600, regular: 400}, ""},
		{"short connections regular", ExpressShort, short, reading{uplink: 1000, bridge: 1000, regular: 1000}, "only 0.0 %"},
		{"flowtable past the bridge", Flowtable, long, reading{uplink: 1000, bridge: 2}, ""},
		{"flowtable of the uplink alone", Flowtable, long, reading{uplink: 1000, bridge: 1000}, "crossed the bridge"},
		{"flowtable, short connections", Flowtable, short, reading{uplink: 1000, bridge: 600}, ""},
		{"container, short connections", Container, short, reading{uplink: 1000}, "only 0.0 %"},
	} {
		err := c.used.check(c.mode, c.step)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}

func TestReadingSince(t *testing.T) {
	before := reading{uplink: 10, bridge: 5, express: 3, regular: 7, reasons: map[string]uint64{"lease": 2, "syn": 1}}
	after := reading{uplink: 110, bridge: 6, express: 93, regular: 8, reasons: map[string]uint64{"lease": 4, "syn": 1}}
	used := after.since(before)
	if used.uplink != 100 || used.bridge != 1 || used.express != 90 || used.regular != 1 {
		t.Errorf("difference of the packets: %+v", used)
	}
	if len(used.reasons) != 1 || used.reasons["lease"] != 2 {
		t.Errorf("difference of the reasons: %v", used.reasons)
	}
}
