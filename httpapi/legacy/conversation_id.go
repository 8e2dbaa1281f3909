package legacy

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
)

// maxID limits a conversation id chosen by a V0 client, in characters.
const maxID = 100

// CheckID applies upstream's rules for a requested conversation id.
func CheckID(id string) error {
	text := ""
	switch {
	case id == "":
		text = "Conversation ID must not be empty"
	case utf8.RuneCountInString(id) > maxID:
		text = "Conversation ID is too long"
	case strings.Contains(id, "..") || strings.ContainsAny(id, `/\`):
		text = "Conversation ID contains invalid path characters"
	case strings.ContainsFunc(id, unicode.IsControl):
		text = "Conversation ID contains control characters"
	default:
		return nil
	}
	return response.Error(http.StatusBadRequest, text)
}

// MapID returns the V1 id for a V0 id: a UUID's hex form, or for any other text an id derived from
// user and text. v0 is the original text, "" if it equals the V1 id.
func MapID(user, id string) (hex, v0 string) {
	if hex, ok := decode.ParseUUID(id); ok {
		if hex == id {
			return hex, ""
		}
		return hex, id
	}
	derived := uuid.NewSHA1(uuid.NameSpaceURL, []byte("bivouac:conversation:"+user+":"+id))
	return strings.ReplaceAll(derived.String(), "-", ""), id
}
