package native

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// largestPicture bounds a picture's bytes: the least limit of the known servers, Anthropic's.
const largestPicture = 5 << 20

// pictures leaves out the pictures of a message that the model can't take, with a note in the place
// of each. The bytes say what is a picture, not a name.
func (d dialect) pictures(m *openai.ChatCompletionMessage) {
	if len(m.MultiContent) == 0 {
		return
	}
	parts, left := slices.Clone(m.MultiContent), 0
	for i, p := range parts {
		if p.Type != openai.ChatMessagePartTypeImageURL || p.ImageURL == nil {
			continue
		}
		url, why := picture(p.ImageURL.URL)
		if d.noPictures {
			why = "the model takes no pictures"
		}
		if why != "" {
			parts[i] = openai.ChatMessagePart{
				Type: openai.ChatMessagePartTypeText, Text: "[A picture was left out: " + why + ".]",
			}
			continue
		}
		left++
		parts[i].ImageURL = &openai.ChatMessageImageURL{URL: url, Detail: p.ImageURL.Detail}
	}
	if left > 0 {
		m.MultiContent = parts
		return
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	m.MultiContent, m.Content = nil, strings.Join(texts, "\n")
}

// picture returns the address of a picture with the type that its bytes have, or why it is none.
func picture(url string) (fit, why string) {
	head, data, inline := strings.Cut(url, ",")
	if !strings.HasPrefix(head, "data:") {
		if strings.HasPrefix(url, "https://") || strings.HasPrefix(url, "http://") {
			return url, ""
		}
		return "", "its address can't be read"
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	switch {
	case !inline || !strings.HasSuffix(head, ";base64") || err != nil:
		return "", "its data can't be read"
	case len(b) > largestPicture:
		return "", "it is larger than 5 MiB"
	}
	switch kind := http.DetectContentType(b); kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return "data:" + kind + ";base64," + strings.TrimSpace(data), ""
	}
	return "", "it is no PNG, JPEG, GIF or WebP"
}
