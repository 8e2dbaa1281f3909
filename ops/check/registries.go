package check

import (
	"fmt"
	"regexp"
	"strings"
)

// registryHost matches the host of a public package registry.
var registryHost = regexp.MustCompile(`\b(?:deb|security)\.debian` + `\.org|\bregistry\.(?:npmjs|yarnpkg)` +
	`\.(?:org|com)|\b(?:proxy|sum)\.golang` + `\.org|\b(?:files\.pythonhosted|pypi)` + `\.org`)

// Registries reports hosts of package registries. A script uses the mirror that the machine's
// package manager is configured with, so that it works in a closed network.
func Registries(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		for i, line := range strings.Split(f.Body, "\n") {
			if host := registryHost.FindString(line); host != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s: ask the machine's package manager", f.Path, i+1, host))
			}
		}
	}
	return found
}
