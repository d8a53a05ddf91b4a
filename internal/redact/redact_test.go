package redact

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

// known returns a Redactor that knows the names of a machine.
func known() *Redactor {
	r := New()
	r.Name("container", "billing-db")
	r.Name("container", "express") // a word of SCON's, too
	r.Name("veth", "veth1a2b3c4")
	r.Name("bridge", "br-0f1e2d3c4b5a")
	r.Keep("6.1.0-18-acme+")
	return r
}

// What is known stays, and a name has one pseudonym in all texts.
func TestText(t *testing.T) {
	r := known()
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"hooked port", "hooked port"},
		{"time=2026-11-25T21:13:50.123Z level=INFO msg=ready pid=4711", "time=2026-11-25T21:13:50.123Z level=INFO msg=ready pid=4711"},
		{"container=billing-db dev=veth1a2b3c4@if5", "container=container-1 dev=veth-1@if5"},
		{"express", "container-2"},
		{"customer customer.", "name-1 name-1."},
		{"my-web-1", "name-2"},
		{"/run/netns/customer", "/run/netns/name-1"},
		{"no such file or directory", "no such file or directory"},
		{"eth0 docker0 lo br-0f1e2d3c4b5a", "eth0 docker0 lo bridge-1"},
		{"4f2a9b8c7d6e 4f2a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a", "id-1 id-1"},
		{"kernel 6.1.0-18-acme+", "kernel 6.1.0-18-acme+"},
		{"12345678901 4026531840 10ms 1m30s 3.5% 0x4000 -1 1.0.6 8080-8090", "name-3 4026531840 10ms 1m30s 3.5% 0x4000 -1 1.0.6 8080-8090"},
		{"größe\x00", "name-4\x00"},
		{`-m comment --comment "allow the express path" -j DROP`, `-m comment --comment "text-1" -j DROP`},
		{`-m comment --comment drop -m string --string -x --algo bm`, `-m comment --comment text-2 -m string --string text-3 --algo bm`},
		{`it says: accept comment \"for billing\" counter`, `it says: accept comment \"text-4\" counter`},
		{`log prefix "new: " level warn`, `log prefix "text-5" level warn`},
	} {
		if got := r.Text(c.text); got != c.want {
			t.Errorf("%q\n got %q\nwant %q", c.text, got, c.want)
		}
	}
}

func TestAddresses(t *testing.T) {
	r := New()
	at := func(s string) string { return r.Addr(netip.MustParseAddr(s)).String() }
	for text, want := range map[string]string{
		"tcp:172.17.0.2:43512->10.0.0.1:80":                                   "tcp:" + at("172.17.0.2") + ":43512->" + at("10.0.0.1") + ":80",
		"[fd00::2]:80 via fe80::1%eth0.":                                      "[" + at("fd00::2") + "]:80 via " + at("fe80::1") + "%eth0.",
		"203.0.113.9-203.0.113.12":                                            at("203.0.113.9") + "-" + at("203.0.113.12"),
		"172.17.0.2/255.255.0.0":                                              at("172.17.0.2") + "/255.255.0.0",
		"fd00::1: unreachable; ::ffff:10.0.0.1":                               at("fd00::1") + ": unreachable; " + at("::ffff:10.0.0.1"),
		"0.0.0.0/0 10.0.0.0/8 ::/0 127.0.0.1 255.255.255.255 ::1 224.0.0.0/4": "0.0.0.0/0 10.0.0.0/8 ::/0 127.0.0.1 255.255.255.255 ::1 224.0.0.0/4",
		"00:00:00:00:00:00 ff:ff:ff:ff:ff:ff":                                 "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
	for text, want := range map[string]string{ // forms
		"172.17.0.0/16":             `^172\.(1[6-9]|2\d|3[01])\.0\.0/16$`,
		"192.168.7.0/255.255.255.0": `^192\.168\.\d+\.0/255\.255\.255\.0$`,
		"203.0.113.9":               `^2(4\d|5[0-5])\.`,
		"2001:db8:1::9":             `^3fff:`,
		"2001:db8:1::/48":           `^3fff:[0-9a-f]+:[0-9a-f]+::/48$`,
		"fe80::42:acff:fe11:2":      `^fe80::`,
		"02:42:ac:11:00:02":         `^02(:[0-9a-f]{2}){5}$`,
		"80:00:02:08:fe:80" + strings.Repeat(":01", 14): `^02(:[0-9a-f]{2}){19}$`,
		"10.0.0.1.5 10.0.0.1x v10.0.0.1":                `^name-1 name-2 name-3$`,
	} {
		if got := r.Text(text); !regexp.MustCompile(want).MatchString(got) || got == text && !strings.Contains(text, "/") {
			t.Errorf("%q: got %q, want %s", text, got, want)
		}
	}
}

// Networks are left: pseudonyms have as many leading bits in common as their addresses. No
// two addresses share one.
func TestNetworks(t *testing.T) {
	r := New()
	common := func(a, b netip.Addr) int {
		n := 0
		for n < a.BitLen() {
			if p, _ := a.Prefix(n + 1); !p.Contains(b) {
				break
			}
			n++
		}
		return n
	}
	seen := make(map[netip.Addr]string)
	for _, pair := range [][2]string{
		{"172.17.0.2", "172.17.0.3"}, {"172.17.0.2", "172.18.0.2"}, {"192.0.2.1", "192.0.3.1"},
		{"fd00::1:2", "fd00::1:3"}, {"2001:db8::1", "2001:db8:5::1"}, {"10.255.0.1", "10.0.0.1"},
	} {
		a, b := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		pa, pb := r.Addr(a), r.Addr(b)
		if common(pa, pb) != common(a, b) {
			t.Errorf("%v and %v become %v and %v", a, b, pa, pb)
		}
		for p, of := range map[netip.Addr]string{pa: pair[0], pb: pair[1]} {
			if was := seen[p]; was != "" && was != of {
				t.Errorf("%s and %s both become %v", was, of, p)
			}
			seen[p] = of
		}
	}
	net, _ := netip.MustParseAddr("172.17.0.0").Prefix(16)
	text := r.Text("172.17.0.0/16")
	if p := netip.MustParsePrefix(text); !p.Contains(r.Addr(netip.MustParseAddr("172.17.0.2"))) {
		t.Errorf("%v became %v, which is not the network of its addresses", net, p)
	}
	if other := New(); other.Text("172.17.0.2 203.0.113.9 fd12::3") == r.Text("172.17.0.2 203.0.113.9 fd12::3") {
		t.Error("two reports have the same pseudonyms")
	}
}

const nftRules = `table inet acme_fw {
	comment "of ACME"
	set customers {
		type ipv4_addr . inet_service
		flags interval
		elements = { 203.0.113.7 . 443 comment "Mrs Smith",
			     198.51.100.0/24 . 8000-8100 }
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "br-acme" oifname { "eth0", "wan7" } ip saddr @customers counter packets 123456789012 bytes 99 accept comment "drop" # handle 4
		@nh,96,32 0xac110002 meta mark set 0x00004000 jump acme_fw
	}
}
`

const saveRules = `# Generated by iptables-save v1.8.9 (nf_tables) on Wed Nov 25 20:00:00 2026
*nat
:PREROUTING ACCEPT [123456789012:9]
:DOCKER-USER - [0:0]
:acme-in - [0:0]
[4:5] -A PREROUTING -s 203.0.113.0/24 -i br-acme -p tcp -m tcp --dport 80 -m comment --comment "s3cr3t \"key\" accept" -j DNAT --to-destination 172.17.0.2:8080
-A DOCKER-USER -m set --match-set acme-in src -m string --string password --algo bm -m mac --mac-source 02:42:AC:11:00:02 -j acme-in
-A acme-in -m comment --comment -hunter2 -m hashlimit --hashlimit-name acme --hashlimit-upto 10/sec -j LOG --log-prefix "drop it"
COMMIT
`

// Rules keep their structure: key words, numbers, hooks, and which name is which.
func TestRules(t *testing.T) {
	r := New()
	nft, save := r.Rules(nftRules), r.Rules(saveRules)
	both := strings.ToLower(nft + save)
	for _, secret := range []string{
		"acme", "customers", "smith", "203.0.113", "198.51.100", "wan7", "ac110002", "s3cr3t", "key", "hunter2", "password",
		"172.17.0.2", "02:42:ac", `"drop`, "drop it",
	} {
		if strings.Contains(both, secret) {
			t.Errorf("%q is left in\n%s%s", secret, nft, save)
		}
	}
	for _, want := range []string{
		"type ipv4_addr . inet_service\n", "type filter hook forward priority filter; policy drop;\n",
		`oifname { "eth0", "`, "counter packets 123456789012 bytes 99 accept comment \"", "# handle 4\n", "meta mark set 0x00004000 jump ",
		". 8000-8100 }", "# Generated by iptables-save v1.8.9 (nf_tables) on Wed Nov 25 20:00:00 2026\n", ":PREROUTING ACCEPT [123456789012:9]\n",
		"[4:5] -A PREROUTING -s 2", ":DOCKER-USER - [0:0]\n", "--hashlimit-upto 10/sec -j LOG --log-prefix \"",
		" -p tcp -m tcp --dport 80 -m comment --comment \"", "-j DNAT --to-destination 172.",
	} {
		if !strings.Contains(nft+save, want) {
			t.Errorf("no %q in\n%s%s", want, nft, save)
		}
	}
	chain := regexp.MustCompile(`(?m)^:(\S+) - \[0:0\]\n\[`).FindStringSubmatch(save)
	if chain == nil || strings.Count(save, chain[1]) != 4 {
		t.Errorf("a name has several pseudonyms in\n%s", save)
	}
}

func TestJSON(t *testing.T) {
	r := known()
	r.Name("container", `a"b`)
	got := string(r.JSON([]byte(`{"name": "billing-db", "express_packets": 123456789012, "why": "rule \"wbe\": --comment \"it is\" <&>", "acme": [null, true]}`)))
	want := `{"name": "container-1", "express_packets": 123456789012, "why": "rule \"name-1\": --comment \"text-1\" \u003c\u0026\u003e", "name-2": [null, true]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !json.Valid([]byte(got)) {
		t.Error("it is no JSON")
	}
}

// The counters of metrics are longer than numbers that stay elsewhere.
func TestMetrics(t *testing.T) {
	r := known()
	text := `scon_container_express_bytes_total{container="billing-db",other="acme"} 123456789012` + "\n" + `process_start_time_seconds 1.76e+09` + "\n"
	want := strings.NewReplacer("billing-db", "container-1", "acme", "name-1").Replace(text)
	if got := r.Metrics(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKeep(t *testing.T) {
	r := New()
	r.Keep("billing-db")
	if got := r.Name("container", "billing-db") + r.Text(" billing-db, billing-db2"); got != "billing-db billing-db, name-1" {
		t.Errorf("got %q", got)
	}
}

// FuzzSecret checks that a word that is not known is not left, whatever stands beside it,
// and that an address is not either.
func FuzzSecret(f *testing.F) {
	for _, s := range []string{"", nftRules, saveRules, `{"a": "%"}`, "x=%", `--comment "%`, `\"`, "%:80", "fd00::%", "-%", "10.0.0.%", "é%", "@nh,1,2 0x%"} {
		f.Add(s, s, uint32(0xcb007109))
	}
	secrets := []string{"hunter2", "Mrs.Smith", "k8s-prod_7", "größe9", "YWNtZTpzM2NyM3Q"}
	f.Fuzz(func(t *testing.T, before, after string, bits uint32) {
		r := New()
		addr := netip.AddrFrom4([4]byte{byte(bits>>24) | 1, byte(bits >> 16), byte(bits>>8) | 100, byte(bits) | 100})
		_, special := within(same, addr)
		for name, redacted := range map[string]func(string) string{
			"text": r.Text, "metrics": r.Metrics, "rules": r.Rules,
			"JSON": func(s string) string {
				document, _ := json.Marshal([]string{s})
				return string(r.JSON(document))
			},
		} {
			for _, secret := range secrets {
				if strings.Contains(before+after, secret) {
					continue
				}
				if got := redacted(before + secret + after); strings.Contains(got, secret) {
					t.Errorf("%s: %q is left in %q", name, secret, got)
				}
			}
			if s := addr.String(); !special && !strings.Contains(before+after, s) {
				// A pseudonym may be another's address, but hardly ever this one.
				if got := redacted(before + " " + s + " " + after); strings.Contains(got, " "+s+" ") {
					t.Errorf("%s: %q is left in %q", name, s, got)
				}
			}
		}
	})
}
