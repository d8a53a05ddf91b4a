// Package redact makes texts about a machine fit to be sent to others: addresses and names
// are replaced by pseudonyms, the same one wherever it occurs, and secrets disappear.
//
// It keeps what it knows, and replaces all else: a word stays only if it is one of SCON's
// own messages, of the kernel's and its tools' vocabulary (words.txt), or a number. So a
// secret needs no pattern that recognises it, and what is new is replaced until it is known.
//
// Pseudonyms differ from report to report: the key of the addresses is random, and kept
// nowhere.
package redact

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Redactor replaces addresses and names. It is for one goroutine.
type Redactor struct {
	key        [32]byte
	addrs      map[netip.Addr]netip.Addr
	names      map[string]string // pseudonyms by name
	made       map[string]bool   // pseudonyms
	registered map[string]bool
	kept       map[string]bool
	count      map[string]int // pseudonyms by kind
}

// New returns a Redactor with its own random key.
func New() *Redactor {
	r := &Redactor{
		addrs: make(map[netip.Addr]netip.Addr), names: make(map[string]string),
		made: make(map[string]bool), registered: make(map[string]bool), kept: make(map[string]bool), count: make(map[string]int),
	}
	_, _ = rand.Read(r.key[:]) // never fails
	return r
}

// Keep makes the words of a name stay as they are.
func (r *Redactor) Keep(name string) {
	for s := name; len(s) > 0; {
		n := max(1, wordLen(s))
		r.kept[s[:n]] = true
		s = s[n:]
	}
}

// Name registers a name, and returns its pseudonym, such as "container-3". It is replaced
// wherever it occurs, even if it is a known word.
func (r *Redactor) Name(kind, name string) string {
	if name == "" || r.kept[name] {
		return name
	}
	r.registered[name] = true
	return r.replace(kind, name)
}

// replace returns the pseudonym of a name. The kind is that of the first call for the name.
func (r *Redactor) replace(kind, name string) string {
	if hexID.MatchString(name) {
		kind, name = "id", name[:12] // runtimes abbreviate identifiers to 12 digits
	}
	p, known := r.names[name]
	if !known {
		r.count[kind]++
		p = fmt.Sprintf("%s-%d", kind, r.count[kind])
		r.names[name], r.made[p] = p, true
	}
	return p
}

// Longest decimal numbers that stay: longer ones may be identifiers, but not where only
// counters stand.
const (
	digits        = 10
	counterDigits = 20
)

// Text redacts prose, a log, or the lines of a file.
func (r *Redactor) Text(s string) string { return r.text(r.freeText(s), digits) }

// Metrics redacts metrics in Prometheus' text format.
func (r *Redactor) Metrics(s string) string { return r.text(s, counterDigits) }

// Rules redacts the output of nft and of iptables-save. Of all quoted strings, names of
// devices apart, nothing is left.
func (r *Redactor) Rules(s string) string {
	s = quoted.ReplaceAllStringFunc(s, func(q string) string { return `"` + r.whole(q[1:len(q)-1]) + `"` })
	s = rawPayload.ReplaceAllStringFunc(s, func(line string) string {
		return rawValue.ReplaceAllStringFunc(line, func(v string) string { return r.replace("raw", v) })
	})
	return r.text(r.freeText(s), counterDigits)
}

var (
	quoted     = regexp.MustCompile(`"(?:\\.|[^"\\])*"`)
	rawPayload = regexp.MustCompile(`@(?:ll|nh|th|ih),\d+,\d+[0-9a-fx ,{}!=<>&|^-]*`)
	rawValue   = regexp.MustCompile(`0x[0-9a-fA-F]+`)
)

// JSON redacts every string and every key of a document.
func (r *Redactor) JSON(document []byte) []byte {
	return quoted.ReplaceAllFunc(document, func(literal []byte) []byte {
		var s string
		if json.Unmarshal(literal, &s) != nil {
			s = string(literal[1 : len(literal)-1])
		}
		redacted, _ := json.Marshal(r.Text(s)) // a string always has a form
		return redacted
	})
}

// freeText replaces what users write into rules, of which known words are no less theirs.
func (r *Redactor) freeText(s string) string {
	for _, form := range userText {
		s = form.ReplaceAllStringFunc(s, func(match string) string {
			m := form.FindStringSubmatch(match)
			return m[1] + r.whole(m[2]) + m[3]
		})
	}
	return s
}

// userText are the options of rules that take a text: in quotes that a log has escaped, in
// quotes, and as one word.
var userText = []*regexp.Regexp{
	regexp.MustCompile(`(` + takesText + ` \\+")([^"]*?)(\\+")`),
	regexp.MustCompile(`(` + takesText + ` ")((?:[^"\\]|\\.)*)(")`),
	regexp.MustCompile(`(` + takesWord + ` )([^\s"\\]+)()`),
}

const (
	takesWord = `--(?:comment|string|hex-string|log-prefix|nflog-prefix|u32|bytecode)`
	takesText = `(?:` + takesWord + `|\b(?:comment|log prefix))`
)

// whole replaces a text as one name, unless it is the name of a device or has been replaced.
func (r *Redactor) whole(s string) string {
	if !r.registered[s] && (device.MatchString(s) || r.made[s]) {
		return s
	}
	return r.replace("text", s)
}

// text redacts addresses, then words.
func (r *Redactor) text(s string, digits int) string {
	var out strings.Builder
	for len(s) > 0 {
		if replaced, n := r.address(s); n > 0 {
			out.WriteString(replaced)
			s = s[n:]
		} else if n := wordLen(s); n > 0 {
			out.WriteString(r.word(s[:n], digits))
			s = s[n:]
		} else {
			out.WriteByte(s[0])
			s = s[1:]
		}
	}
	return out.String()
}

// wordLen returns the length of the word that s begins with. Dots and dashes within belong to
// it: of "my-web-1" nothing must be left because its parts are common words.
func wordLen(s string) (n int) {
	if len(s) > 0 && (s[0] == '.' || s[0] == '-') {
		return 0
	}
	for n < len(s) && isWord(s[n]) {
		n++
	}
	return n
}

func isWord(c byte) bool {
	return c == '.' || c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf
}

// word replaces a word that is not known.
func (r *Redactor) word(s string, digits int) string {
	core := strings.TrimRight(s, ".-")
	switch {
	case r.registered[s]:
		return r.replace("name", s)
	case !r.registered[core] && (r.kept[core] || r.kept[s] || r.made[core] || isKnown(core, digits)):
		return s
	}
	return r.replace("name", core) + s[len(core):]
}

var (
	hexID = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
	// device is a name that kernel, distributions or engines give to every machine's device.
	device = regexp.MustCompile(`^(lo|(eth|wlan|wwan|ppp|tun|tap|wg|podman|virbr|flannel\.)[0-9]{1,3}|docker0|cni0|nodelocaldns|kube-ipvs0|cilium_(host|net|vxlan)|vxlan\.calico|tunl0)$`)
	// numeric is a number with its unit, a time, a version, a range, an option of the kernel.
	numeric = regexp.MustCompile(`^(` + strings.Join([]string{
		`\d+(\.\d{1,9})?([eE]-?\d{0,3})?`,
		`\d{1,10}(\.\d{1,9})?(ns|us|µs|ms|s|m|h|d|w|B|[kKMGT]i?B?|Z)`,
		`(\d{1,5}h)?(\d{1,5}m)?\d{1,5}(\.\d{1,9})?s`,
		`v?\d{1,5}(\.\d{1,5}){1,2}(-\d{1,4})?`,
		`\d{4}-\d\d-\d\d(T\d\d)?`,
		`\d{1,10}-\d{1,10}`,
		`0x[0-9a-fA-F]{1,8}`,
		`CONFIG_[A-Z0-9_]+`,
		`if\d{1,6}`,
		`(deb\d{1,3}u|go|iproute2-|libbpf-?)\d{1,3}(\.\d{1,3}){0,2}`,
		`(from_container|to_wire|from_wire|to_container|from_netkit|qdisc)(_[a-z]{1,16})?_\d{1,9}`,
	}, "|") + `)$`)
)

// isKnown reports whether a word may stay. Whole numbers have at most that many digits.
func isKnown(word string, digits int) bool {
	if numeric.MatchString(word) {
		whole := strings.TrimRight(word, ".eE-")
		return len(strings.Trim(whole, "0123456789")) > 0 || len(whole) <= digits
	}
	return device.MatchString(word) || words()[strings.ToLower(word)]
}

// IsDevice reports whether a name is one that kernel, distributions or engines give to a
// device of every machine: it stays.
func IsDevice(name string) bool { return device.MatchString(name) }
