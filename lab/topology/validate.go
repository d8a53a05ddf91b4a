package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/scon-project/scon/internal/suggest"
)

// compiled is the compiled schema, which is embedded.
var compiled = sync.OnceValue(func() *jsonschema.Schema {
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(Schema))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("scon:topology", parsed); err != nil {
		panic(err)
	}
	return c.MustCompile("scon:topology")
})

// validate checks the document against the schema.
func (d *document) validate() []problem {
	var invalid *jsonschema.ValidationError
	if err := compiled().Validate(d.value); !errors.As(err, &invalid) {
		return nil
	}
	var problems []problem
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			problems = append(problems, d.explain(e)...)
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(invalid)
	return slices.CompactFunc(problems, func(a, b problem) bool { return key(a.path) == key(b.path) })
}

// nodesPath is the path of the mapping whose keys are the nodes' names; wantName
// describes a valid name.
var nodesPath = []string{"topology", "nodes"}

const (
	wantName = "up to 32 letters, digits, '_', '.' and '-'"
	wantTime = "a time with its unit, such as 10ms"
)

// english prints the validation errors that explain does not rephrase.
var english = message.NewPrinter(language.English)

// explain describes the schema's objections to a value.
func (d *document) explain(e *jsonschema.ValidationError) (problems []problem) {
	at := e.InstanceLocation
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			what := "is unknown" + suggest.Hint(name, known(e.SchemaURL))
			if key(at) == key(nodesPath) {
				what = "is no name: want " + wantName
			}
			problems = append(problems, problem{append(slices.Clone(at), name), what})
		}
		return problems
	case *kind.Required:
		return []problem{{at, "lacks " + strings.Join(k.Missing, " and ")}}
	case *kind.Type:
		if last := at[max(len(at)-1, 0):]; len(last) > 0 && (last[0] == "delay" || last[0] == "jitter") {
			return []problem{{at, fmt.Sprintf("is %s: want %s", article(k.Got), wantTime)}}
		}
		return []problem{{at, fmt.Sprintf("is %s: want %s", article(k.Got), strings.Join(articles(k.Want), " or "))}}
	case *kind.Enum:
		return []problem{{at, fmt.Sprintf("is %q: want one of %s", fmt.Sprint(k.Got), list(k.Want))}}
	case *kind.FalseSchema:
		return []problem{{at, "does not go with " + d.opponent(at)}}
	case *kind.Pattern:
		want := "NODE:INTERFACE"
		switch at[len(at)-1] {
		case "name":
			want = wantName
		case "image":
			want = "the name of an image"
		}
		return []problem{{at, fmt.Sprintf("is %q: want %s", k.Got, want)}}
	case *kind.Minimum:
		got, _ := k.Got.Float64()
		want, _ := k.Want.Float64()
		return []problem{{at, fmt.Sprintf("is %v: want at least %v", got, want)}}
	case *kind.Maximum:
		got, _ := k.Got.Float64()
		want, _ := k.Want.Float64()
		return []problem{{at, fmt.Sprintf("is %v: want at most %v", got, want)}}
	case *kind.MinItems:
		return []problem{{at, fmt.Sprintf("has %d items: want %d", k.Got, k.Want)}}
	case *kind.MinProperties:
		return []problem{{at, fmt.Sprintf("has %d: want %d at least", k.Got, k.Want)}}
	case *kind.MaxProperties:
		return []problem{{at, fmt.Sprintf("has %d: want %d at most", k.Got, k.Want)}}
	case *kind.MinLength:
		return []problem{{at, "is empty"}}
	case *kind.MaxItems:
		return []problem{{at, fmt.Sprintf("has %d items: want %d at most", k.Got, k.Want)}}
	}
	return []problem{{at, e.ErrorKind.LocalizedString(english)}}
}

// opponent returns the field with which another is incompatible.
func (d *document) opponent(at []string) string {
	if at[len(at)-3] == "nodes" {
		return "kind netns, which is the default; kind linux is a container"
	}
	return "this type of link"
}

// known returns the properties that an object of the schema lists.
func known(url string) (names []string) {
	var node any
	if err := json.Unmarshal([]byte(Schema), &node); err != nil {
		panic(err)
	}
	_, pointer, _ := strings.Cut(url, "#")
	for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if below, ok := node.(map[string]any); ok && step != "" {
			node = below[step]
		}
	}
	if object, ok := node.(map[string]any); ok {
		if properties, ok := object["properties"].(map[string]any); ok {
			names = slices.Sorted(maps.Keys(properties))
		}
	}
	return names
}

// article returns the name of a JSON type with its article.
func article(kind string) string {
	switch kind {
	case "array":
		return "a list"
	case "object":
		return "a mapping"
	case "null":
		return "empty"
	case "integer":
		return "a whole number"
	case "string":
		return "a text"
	}
	return "a " + kind
}

func articles(kinds []string) (words []string) {
	for _, kind := range kinds {
		words = append(words, article(kind))
	}
	return words
}

func list(values []any) string {
	var words []string
	for _, v := range values {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, ", ")
}
