package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// browserManifest begins the file in which the build lists its own routes.
const browserManifest = "window.__reactRouterManifest="

// browserManifestName matches its name.
var browserManifestName = regexp.MustCompile(`^assets/manifest-[0-9a-f]{8}\.js$`)

// routesOf reads the paths that the page itself knows out of the build's list.
func routesOf(body []byte) ([]string, error) {
	rest, is := bytes.CutPrefix(bytes.TrimSpace(body), []byte(browserManifest))
	if !is {
		return nil, errors.New("the list of routes does not begin with " + browserManifest)
	}
	var manifest struct {
		Routes map[string]struct {
			ParentID string `json:"parentId"`
			Path     string `json:"path"`
			Index    bool   `json:"index"`
		} `json:"routes"`
	}
	if err := json.Unmarshal(bytes.TrimSuffix(rest, []byte(";")), &manifest); err != nil {
		return nil, fmt.Errorf("the list of routes: %w", err)
	}
	list := []string{"/"}
	for id, route := range manifest.Routes {
		if route.Path == "" {
			continue // a layout, or the index of its parent
		}
		at := route.Path
		for up := route.ParentID; up != ""; up = manifest.Routes[up].ParentID {
			if _, there := manifest.Routes[up]; !there {
				return nil, fmt.Errorf("the list of routes has no %q, the parent of %q", up, id)
			}
			at = path.Join(manifest.Routes[up].Path, at)
		}
		if strings.ContainsAny(strings.TrimSuffix(at, "/*"), "*?") {
			return nil, fmt.Errorf("the route %q has a form that a node does not know", at)
		}
		list = append(list, "/"+strings.Trim(at, "/"))
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
