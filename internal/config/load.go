package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/scon-project/scon/internal/suggest"
)

// maxSize limits the file, in bytes.
const maxSize = 1 << 18

// Load reads the file at path over the defaults. Errors about its content begin with
// path:line:column.
func Load(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read is Load for an open file; errors contain name.
func Read(name string, r io.Reader) (Config, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	switch {
	case err != nil:
		return Config{}, fmt.Errorf("read config %s: %w", name, err)
	case len(content) > maxSize:
		return Config{}, fmt.Errorf("%s: is larger than %d bytes: not a configuration of scon", name, maxSize)
	case len(strings.TrimSpace(string(content))) == 0:
		return Config{}, fmt.Errorf("%s: is empty: remove the file to use the defaults, or set at least one key", name)
	}
	c := Default()
	if err := c.apply(content); err != nil {
		return Config{}, fmt.Errorf("%s:%w", name, err)
	}
	return c, nil
}

// Place returns where the file at path sets a key, "path:line:column", or path alone if it
// does not, or cannot be read.
func Place(path, key string) string {
	content, err := os.ReadFile(path)
	set := make(map[string]*token.Token)
	c := Default()
	if err != nil || c.applyAll(content, set) != nil || set[key] == nil {
		return path
	}
	return fmt.Sprintf("%s:%d:%d", path, set[key].Position.Line, set[key].Position.Column)
}

// apply sets the keys in content. Errors begin with line:column.
func (c *Config) apply(content []byte) error {
	set := make(map[string]*token.Token)
	if err := c.applyAll(content, set); err != nil {
		return err
	}
	var e *ValueError
	if err := c.Startup.checkTogether(); errors.As(err, &e) {
		return at(cmp.Or(set[e.Key], set[e.With]), "%w", err) // one is set, since the defaults fit together
	}
	return nil
}

// applyAll is apply without comparing values. It notes the places of those that are set.
func (c *Config) applyAll(content []byte, set map[string]*token.Token) error {
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil {
			return at(e.GetToken(), "%s", e.GetMessage())
		}
		return fmt.Errorf("1:1: %w", err)
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0: // comments only: the defaults
		return nil
	case 1:
		return c.applyMapping(bodies[0], "", set)
	default:
		return at(bodies[1].GetToken(), "begins a second document: want one")
	}
}

// applyMapping sets the keys of one mapping. prefix is the mapping's own name, "log." for
// the keys of log, "" for the file.
func (c *Config) applyMapping(n ast.Node, prefix string, set map[string]*token.Token) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		what := "the file"
		if prefix != "" {
			what = strings.TrimSuffix(prefix, ".")
		}
		return at(n.GetToken(), "%s is %s: want `key: value` lines", what, describe(n))
	}
	for it := m.MapRange(); it.Next(); {
		if err := c.applyKey(prefix, it.KeyValue(), set); err != nil {
			return err
		}
	}
	return nil
}

// sections are keys whose values are mappings.
var sections = []string{"log", "startup", "startup.pool", "startup.limits", "pipe", "docker"}

// applyKey sets one key, or all keys of a section.
func (c *Config) applyKey(prefix string, kv *ast.MappingValueNode, set map[string]*token.Token) error {
	word := kv.Key.GetToken().Value
	name := prefix + word
	switch {
	case slices.Contains(sections, name):
		return c.applyMapping(kv.Value, name+".", set)
	case strings.Contains(word, "."):
		return at(kv.Key.GetToken(), "unknown key %q%s", word, hintDotted(word))
	}
	for _, k := range keys {
		if k.name != name {
			continue
		}
		err := k.read(c, kv.Value)
		if err == nil {
			err = k.check(c)
		}
		if err != nil {
			return at(place(kv.Value, err), "%w", &ValueError{Key: name, Err: err})
		}
		set[name] = kv.Value.GetToken()
		return nil
	}
	return at(kv.Key.GetToken(), "unknown key %q%s", name, hint(name, word))
}

// place returns where a wrong value is: of a list, the element.
func place(n ast.Node, err error) *token.Token {
	var e *elementError
	list, ok := n.(*ast.SequenceNode)
	if ok && errors.As(err, &e) && e.index < len(list.Values) {
		return list.Values[e.index].GetToken()
	}
	return n.GetToken()
}

// hint returns the key that was probably meant: one of a similar name, or one that is called
// so in another section.
func hint(name, word string) string {
	names := append(Names(), sections...)
	if similar := suggest.Hint(name, names); similar != "" {
		return similar
	}
	for _, known := range names {
		if strings.HasSuffix(known, "."+word) {
			return fmt.Sprintf(": did you mean %q?", known)
		}
	}
	return ""
}

// hintDotted says how a key with its section's name is written.
func hintDotted(word string) string {
	for _, known := range Names() {
		if known == word {
			dot := strings.LastIndex(word, ".")
			return fmt.Sprintf(": write %q below %q", word[dot+1:], word[:dot])
		}
	}
	return suggest.Hint(word, Names())
}

// Names returns the dotted names of all keys, in the order of the shipped file.
func Names() []string {
	var all []string
	for _, k := range keys {
		all = append(all, k.name)
	}
	return all
}

// at returns an error with the position of tk, "line:column: ...".
func at(tk *token.Token, format string, args ...any) error {
	return fmt.Errorf("%d:%d: %w", tk.Position.Line, tk.Position.Column, fmt.Errorf(format, args...))
}
