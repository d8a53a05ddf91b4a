package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/suggest"
)

// undecoded returns an error that locates a JSON error in a configuration.
func undecoded(input []byte, err error) error {
	what := err.Error()
	typed, syntax := new(json.UnmarshalTypeError), new(json.SyntaxError)
	switch {
	case errors.As(err, &typed):
		key := strings.TrimPrefix(typed.Field, "PluginConf.")
		if key == "" {
			key = "the document"
		}
		what = fmt.Sprintf("%s is %s %s: want %s", key, article(typed.Value), typed.Value, wanted(typed.Type))
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(input[:min(int(syntax.Offset), len(input))], []byte("\n"))
		what = fmt.Sprintf("line %d: %v", line, err)
	}
	return types.NewError(types.ErrDecodingFailure, "read the network configuration: "+what, "")
}

func article(noun string) string {
	if strings.HasPrefix(noun, "a") || strings.HasPrefix(noun, "o") {
		return "an"
	}
	return "a"
}

// wanted describes the values of a type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Uint16:
		return "a whole number, 0..65535"
	case reflect.Uint64:
		return "a non-negative whole number"
	default:
		return "a whole number"
	}
}

// checkKeys refuses unknown keys: a misspelled key would silently have no effect.
func checkKeys(input []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(input, &keys); err != nil {
		return err
	}
	known := append(jsonKeys(reflect.TypeFor[document]()), jsonKeys(reflect.TypeFor[Network]())...)
	for k := range keys {
		if !slices.Contains(known, k) && !strings.HasPrefix(k, "cni.dev/") {
			return fmt.Errorf("unknown key %q%s", k, suggest.Hint(k, known))
		}
	}
	for f := range reflect.TypeFor[Network]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "ipam" && !ownIPAM(keys[name]) {
			continue // its keys belong to the other plugin
		}
		if err := checkInner(name, f.Type, keys[name]); err != nil {
			return err
		}
	}
	return nil
}

func ownIPAM(value json.RawMessage) bool {
	var i struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(value, &i) == nil && i.Type == OwnIPAM
}

// checkInner is checkKeys for the value of a key, which has the right type.
func checkInner(path string, t reflect.Type, value json.RawMessage) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(value, &list) != nil {
			return nil
		}
		for i, v := range list {
			if err := checkInner(fmt.Sprintf("%s[%d]", path, i), t.Elem(), v); err != nil {
				return err
			}
		}
	case reflect.Struct:
		var keys map[string]json.RawMessage
		if json.Unmarshal(value, &keys) != nil {
			return nil
		}
		known := jsonKeys(t)
		for k, v := range keys {
			if !slices.Contains(known, k) {
				return fmt.Errorf("unknown key %q in %s%s", k, path, suggest.Hint(k, known))
			}
			if inner, ok := fieldOf(t, k); ok {
				if err := checkInner(path+"."+k, inner, v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// jsonKeys returns the names of a struct's fields in JSON.
func jsonKeys(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			names = append(names, jsonKeys(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// fieldOf returns the type of a struct's own field by its name in JSON.
func fieldOf(t reflect.Type, key string) (reflect.Type, bool) {
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return f.Type, true
		}
	}
	return nil, false
}
