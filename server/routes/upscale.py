"""POST /v1/images/upscale: an image, enlarged by the second pass of a diffusion model."""

import asyncio
from functools import partial

from fastapi import APIRouter, Request, Response

from server.errors import BadRequest
from server.flows.call_recording import describe_body
from server.flows.images.request import ImageRequest
from server.flows.references import Reference
from server.http import examples
from server.http.bodies import read_json, receiving_body
from server.http.deps import Caller, ServicesDep, content_type_of, public_base, wants_async
from server.http.image_forms import kind_of, open_form, read_form
from server.http.openapi import CREATE_ERRORS, CREATE_HEADERS, form_body, json_body, returns
from server.routes.images import IMAGE_TYPES, PARAMETERS, AskedCall, answer_call
from server.schemas.images import (
    ImageAnswer,
    UpscaleBody,
    UpscaleForm,
    UpscaleUpload,
    refuse_unread_images,
    unread_image,
)
from server.schemas.validation import ignored_fields, validate
from server.services import Services
from server.telemetry.call_trace import current_trace

router = APIRouter(prefix="/v1/images")
ONE_IMAGE = "send one image, as 'image'; all of it is enlarged"
ENDPOINT = "images.upscale"
CONTENT = {
    **json_body(UpscaleBody, examples.UPSCALE)["content"],
    **form_body(UpscaleUpload, {}, {"image": IMAGE_TYPES})["content"],
}


@router.post(
    "/upscale",
    response_description="The image.",
    responses=returns(ImageAnswer, *CREATE_ERRORS, headers=["x-darkroom-job", *CREATE_HEADERS]),
    openapi_extra={"parameters": PARAMETERS, "requestBody": {"required": True, "content": CONTENT}},
)
async def upscale(request: Request, key: Caller, services: ServicesDep) -> Response:
    """Enlarge an image.

    Redraws an image at two or four times its size, tile by tile, close to what it is. It takes JSON with the image by
    URL or data URI, or a form with the image as a file. The model is one whose `supports` have `upscale`, and each
    call costs what the model costs. With `background: true` the answer is 202 with the state of the call.
    """
    if content_type_of(request) == "multipart/form-data":
        async with (
            receiving_body(request, key, services),
            open_form(request, max_files=2, max_fields=100, max_part_size=2**20) as form,
        ):
            parts = read_form(form)
            sent = parts.texts
            describe_body(current_trace(), sent)
            body: UpscaleForm = validate(UpscaleForm, sent, strict=False)
            files = parts.of_kind("image")
            if len(files) != 1:
                message = "Send exactly one file part named 'image'."
                raise BadRequest(message, param="image", code="missing_required_parameter")
            if other := next((name for name, _ in parts.files if kind_of(name) != "image"), None):
                raise unread_image(other, ONE_IMAGE)
            image = Reference("image", await files[0].read())
        ignored = [*ignored_fields(UpscaleForm, sent, ()), *parts.ignored]
    else:
        sent = await read_json(request, key, services)
        refuse_unread_images(UpscaleBody.model_fields.keys(), sent, ONE_IMAGE)
        whole = await asyncio.to_thread(partial(validate, UpscaleBody, sent, strict=True))
        body, image, ignored = whole, Reference("image", whole.image), ignored_fields(UpscaleBody, sent, ())
    asked = AskedCall(sent, body, _call(request, services, body, image))
    return await answer_call(request, services, key, asked, ignored)


def _call(request: Request, services: Services, body: UpscaleForm, image: Reference) -> ImageRequest:
    return ImageRequest(
        endpoint=ENDPOINT,
        results_base=public_base(request, services),
        references=(image,),
        in_background=body.background is True or wants_async(request),
        scale=body.scale,
        **body.model_dump(exclude={"scale", "background", "image", "user"}),
    )
