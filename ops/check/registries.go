package check

import (
	"fmt"
	"regexp"
	"strings"
)

// registryHost matches a host from which a package manager takes packages.
var registryHost = regexp.MustCompile(`\b(?:deb|security)\.debian` + `\.org|\bregistry\.(?:npmjs|yarnpkg)` +
	`\.(?:org|com)|\b(?:proxy|sum)\.golang` + `\.org|\b(?:files\.pythonhosted|pypi)` + `\.org`)

// Registries reports the host of a package registry. The machine's own configuration names its
// mirror, which a closed network needs.
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
